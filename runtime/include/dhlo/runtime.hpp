// C++17 wrapper of runtime.h: RAII handles and exceptions, header only, so that nothing but C crosses the library's
// boundary.
#ifndef DHLO_RUNTIME_HPP
#define DHLO_RUNTIME_HPP

#if defined(__GNUC__) && !defined(__cpp_exceptions)
#error "dhlo/runtime.hpp reports failures by exceptions: without them include dhlo/runtime.h"
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dhlo/runtime.h"

namespace dhlo {

// A failed call: the runtime's text, and its status.
class RuntimeError : public std::runtime_error {
 public:
  RuntimeError(dhlo_status status, const char* text) : std::runtime_error(text), status_(status) {}
  dhlo_status status() const noexcept { return status_; }

 private:
  dhlo_status status_;
};

// An element type that C++ has none for: its bits as they lie in memory, converted from float to the nearest, ties to
// even, and to float exactly. Without infinities what is too large becomes NaN, whose exponent and mantissa are all
// ones.
template <class Bits, int Exponent, int Mantissa, bool Infinities>
class SmallFloat {
 public:
  SmallFloat() = default;
  explicit SmallFloat(float value) noexcept : bits_(encode(value)) {}
  static SmallFloat from_bits(Bits bits) noexcept {
    SmallFloat made;
    made.bits_ = bits;
    return made;
  }
  Bits bits() const noexcept { return bits_; }
  explicit operator float() const noexcept {
    const int exponent = (bits_ >> Mantissa) & kOnes, mantissa = bits_ & ((1 << Mantissa) - 1);
    float value;
    if (Infinities && exponent == kOnes)
      value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    else if (!Infinities && (bits_ & kNan) == kNan)
      value = std::numeric_limits<float>::quiet_NaN();
    else if (exponent == 0)
      value = std::ldexp(static_cast<float>(mantissa), kLeast - Mantissa);
    else
      value = std::ldexp(static_cast<float>(mantissa + (1 << Mantissa)), exponent - 1 + kLeast - Mantissa);
    return (bits_ & kSign) != 0 ? -value : value;
  }

 private:
  static constexpr int kOnes = (1 << Exponent) - 1;
  static constexpr int kLeast = 2 - (1 << (Exponent - 1));  // exponent of the smallest normal number
  static constexpr uint32_t kSign = 1u << (Exponent + Mantissa);
  static constexpr uint32_t kNan = Infinities ? (2u * kOnes + 1) << (Mantissa - 1) : kSign - 1;
  static constexpr uint32_t kBeyond = Infinities ? static_cast<uint32_t>(kOnes) << Mantissa : kNan;

  static Bits encode(float value) noexcept {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    const uint32_t sign = word >> 31 != 0 ? kSign : 0;
    word &= 0x7fffffffu;
    if (word > 0x7f800000u) return static_cast<Bits>(sign | kNan);
    const int exponent = std::max(static_cast<int>(word >> 23), 1) - 127;
    const uint32_t significand = (word & 0x7fffffu) | (word >> 23 != 0 ? 0x800000u : 0);
    const int below = std::max(kLeast - exponent, 0);
    const int drop = 23 - Mantissa + below;  // bits that don't fit
    if (drop > 25) return static_cast<Bits>(sign);
    const uint32_t rounded = (significand + (1u << (drop - 1)) - 1 + (significand >> drop & 1)) >> drop;
    const uint32_t steps = below > 0 ? 0 : static_cast<uint32_t>(exponent - kLeast);
    const uint32_t magnitude = (steps << Mantissa) + rounded;
    return static_cast<Bits>(sign | std::min(magnitude, kBeyond));
  }

  Bits bits_ = 0;
};
using f16 = SmallFloat<uint16_t, 5, 10, true>;
using bf16 = SmallFloat<uint16_t, 8, 7, true>;
using f8e4m3fn = SmallFloat<uint8_t, 4, 3, false>;
using f8e5m2 = SmallFloat<uint8_t, 5, 2, true>;

// Two numbers from -8 to 7 in a byte, the first in its low half: how programs keep codes of four bits, in tensors of
// uint8.
class int4x2 {
 public:
  int4x2() = default;
  int4x2(int low, int high) noexcept : bits_(static_cast<uint8_t>((low & 15) | (high & 15) << 4)) {}
  int low() const noexcept { return ((bits_ & 15) ^ 8) - 8; }
  int high() const noexcept { return ((bits_ >> 4) ^ 8) - 8; }
  uint8_t bits() const noexcept { return bits_; }

 private:
  uint8_t bits_ = 0;
};

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<f16> {
  static constexpr dhlo_dtype value = DHLO_F16;
};
template <>
struct DtypeOf<bf16> {
  static constexpr dhlo_dtype value = DHLO_BF16;
};
template <>
struct DtypeOf<f8e4m3fn> {
  static constexpr dhlo_dtype value = DHLO_F8E4M3FN;
};
template <>
struct DtypeOf<f8e5m2> {
  static constexpr dhlo_dtype value = DHLO_F8E5M2;
};
template <>
struct DtypeOf<int4x2> {
  static constexpr dhlo_dtype value = DHLO_U8;
};
template <>
struct DtypeOf<uint64_t> {
  static constexpr dhlo_dtype value = DHLO_U64;
};
template <>
struct DtypeOf<bool> {
  static constexpr dhlo_dtype value = DHLO_BOOL;
};
template <>
struct DtypeOf<uint8_t> {
  static constexpr dhlo_dtype value = DHLO_U8;
};
template <>
struct DtypeOf<int8_t> {
  static constexpr dhlo_dtype value = DHLO_I8;
};
template <>
struct DtypeOf<int16_t> {
  static constexpr dhlo_dtype value = DHLO_I16;
};
template <>
struct DtypeOf<int32_t> {
  static constexpr dhlo_dtype value = DHLO_I32;
};
template <>
struct DtypeOf<int64_t> {
  static constexpr dhlo_dtype value = DHLO_I64;
};
template <>
struct DtypeOf<float> {
  static constexpr dhlo_dtype value = DHLO_F32;
};
template <>
struct DtypeOf<double> {
  static constexpr dhlo_dtype value = DHLO_F64;
};

// A view of the caller's memory together with its sizes. Strides are in elements; none means dense row-major.
class Tensor {
 public:
  Tensor(void* data, int32_t dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides = {})
      : data_(data), dtype_(dtype), sizes_(std::move(sizes)), strides_(std::move(strides)) {}
  template <class T>
  static Tensor of(T* data, std::vector<int64_t> sizes) {
    return Tensor(data, DtypeOf<T>::value, std::move(sizes));
  }
  // Copies the sizes of a runtime-owned output; its data stays valid as runtime.h says.
  explicit Tensor(const dhlo_tensor& view)
      : Tensor(view.data, view.dtype, std::vector<int64_t>(view.sizes, view.sizes + view.rank)) {}

  int32_t dtype() const noexcept { return dtype_; }
  const std::vector<int64_t>& sizes() const noexcept { return sizes_; }
  int64_t elements() const noexcept {
    return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<int64_t>());
  }
  int64_t bytes() const noexcept { return elements() * dhlo_dtype_bytes(dtype_); }
  void* raw() const noexcept { return data_; }
  // The elements, if T is their type.
  template <class T>
  T* data() const {
    if (DtypeOf<T>::value != dtype_)
      throw RuntimeError(DHLO_INVALID_ARGUMENT, "dhlo::Tensor::data: the tensor has another dtype");
    return static_cast<T*>(data_);
  }
  // Borrows sizes and strides from this object.
  dhlo_tensor view() const noexcept {
    return {
        data_, sizes_.data(), strides_.empty() ? nullptr : strides_.data(), dtype_, static_cast<int32_t>(sizes_.size()),
        0};
  }

 private:
  void* data_;
  int32_t dtype_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
};

// A view of memory whose dtype and number of dims are known when the host is compiled, as in the headers that
// `dhlo compile --header` writes. `strides` are in elements; null means dense row-major.
template <class T, std::size_t Rank>
struct View {
  T* data = nullptr;
  std::array<int64_t, Rank> sizes{};
  const int64_t* strides = nullptr;

  // Borrows sizes and strides. `dtype` is that of the elements, which T may hold as their bits.
  dhlo_tensor tensor(int32_t dtype) const noexcept {
    dhlo_tensor view{};
    view.data = const_cast<std::remove_const_t<T>*>(data);
    view.sizes = sizes.data();
    view.strides = strides;
    view.dtype = dtype;
    view.rank = static_cast<int32_t>(Rank);
    return view;
  }
  // Of a result. Throws RuntimeError if it has another dtype or number of dims.
  static View of(const Tensor& result, int32_t dtype) {
    if (result.dtype() != dtype || result.sizes().size() != Rank)
      throw RuntimeError(DHLO_INVALID_ARGUMENT, "dhlo::View: the session is of a model with other results");
    View view;
    view.data = static_cast<T*>(result.raw());
    for (std::size_t dim = 0; dim < Rank; ++dim) view.sizes[dim] = result.sizes()[dim];
    return view;
  }
};

// A counted reference to an environment, for dhlo_model_options.env; copies share it. Thread-safe like dhlo_env.
class Environment {
 public:
  explicit Environment(const dhlo_env_options* options = nullptr) {
    if (const dhlo_status status = dhlo_env_create(options, &env_); status != DHLO_OK)
      throw RuntimeError(status, dhlo_last_error());
  }
  Environment(const Environment& other) noexcept : env_(other.env_) { dhlo_env_retain(env_); }
  Environment(Environment&& other) noexcept : env_(std::exchange(other.env_, nullptr)) {}
  Environment& operator=(Environment other) noexcept {
    std::swap(env_, other.env_);
    return *this;
  }
  ~Environment() { dhlo_env_release(env_); }

  dhlo_env* get() const noexcept { return env_; }
  int64_t num_threads() const noexcept { return dhlo_env_num_threads(env_); }
  // What counts against dhlo_env_options.max_bytes, now.
  int64_t used_bytes() const noexcept { return dhlo_env_used_bytes(env_); }

 private:
  dhlo_env* env_ = nullptr;
};

// A counted reference to a model; copies share it. Thread-safe like dhlo_model.
class Model {
 public:
  static Model load(const std::string& path, const dhlo_model_options* options = nullptr) {
    dhlo_model* model = nullptr;
    check(dhlo_model_load_file(path.c_str(), options, &model));
    return Model(model);
  }
  static Model load(const void* data, size_t bytes, const dhlo_model_options* options = nullptr) {
    dhlo_model* model = nullptr;
    check(dhlo_model_load_memory(data, bytes, options, &model));
    return Model(model);
  }
  static Model from(const dhlo_abi_model& descriptor, const void* constants, size_t bytes,
                    const dhlo_model_options* options = nullptr) {
    dhlo_model* model = nullptr;
    check(dhlo_model_from_descriptor(&descriptor, constants, bytes, nullptr, nullptr, options, &model));
    return Model(model);
  }
  // Another entry of the same model.
  Model entry(const std::string& name) const {
    dhlo_model* model = nullptr;
    check(dhlo_model_entry(model_, name.c_str(), &model));
    return Model(model);
  }
  // In their order; the model that was loaded is the first.
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (int64_t i = 0; i < dhlo_model_num_entries(model_); ++i) names.emplace_back(dhlo_model_entry_name(model_, i));
    return names;
  }
  Model(const Model& other) noexcept : model_(other.model_) { dhlo_model_retain(model_); }
  Model(Model&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
  Model& operator=(Model other) noexcept {
    std::swap(model_, other.model_);
    return *this;
  }
  ~Model() { dhlo_model_release(model_); }

  dhlo_model* get() const noexcept { return model_; }
  int64_t num_inputs() const noexcept { return dhlo_model_num_inputs(model_); }
  int64_t num_outputs() const noexcept { return dhlo_model_num_outputs(model_); }
  const dhlo_abi_value& input(int64_t index) const { return at(dhlo_model_input(model_, index)); }
  // A run writes new content to this input's memory.
  const dhlo_abi_paging* paging() const noexcept { return dhlo_model_paging(model_); }
  bool input_is_updated(int64_t index) const { return dhlo_model_input_is_updated(model_, index) != 0; }
  const dhlo_abi_value& output(int64_t index) const { return at(dhlo_model_output(model_, index)); }
  std::string name() const { return dhlo_model_name(model_); }
  std::string metadata() const { return dhlo_model_metadata(model_); }

  // Needs without running; `outputs`, if given, receives the output shapes.
  dhlo_plan plan(const std::vector<Tensor>& inputs, std::vector<dhlo_shape>* outputs = nullptr) const {
    std::vector<dhlo_tensor> views;
    for (const Tensor& input : inputs) views.push_back(input.view());
    if (outputs != nullptr) outputs->resize(static_cast<size_t>(num_outputs()));
    dhlo_plan plan{};
    plan.struct_bytes = sizeof plan;
    check(dhlo_model_plan(model_, views.data(), static_cast<int64_t>(views.size()),
                          outputs != nullptr ? outputs->data() : nullptr, &plan));
    return plan;
  }

 private:
  explicit Model(dhlo_model* model) noexcept : model_(model) {}
  static void check(dhlo_status status) {
    if (status != DHLO_OK) throw RuntimeError(status, dhlo_last_error());
  }
  static const dhlo_abi_value& at(const dhlo_abi_value* value) {
    if (value == nullptr) throw RuntimeError(DHLO_INVALID_ARGUMENT, "dhlo::Model: index out of range");
    return *value;
  }

  dhlo_model* model_;
};

// For one thread at a time. The model lives at least as long.
class Session {
 public:
  explicit Session(const Model& model, const dhlo_session_options* options = nullptr) {
    dhlo_session* session = nullptr;
    const dhlo_status status = dhlo_session_create(model.get(), options, &session);
    if (status != DHLO_OK) throw RuntimeError(status, dhlo_last_error());
    session_.reset(session);
  }

  dhlo_session* get() const noexcept { return session_.get(); }

  // Runs with the caller's tensors; read results with output().
  void run(const std::vector<Tensor>& inputs, const dhlo_run_options* options = nullptr) {
    views_.clear();
    for (const Tensor& input : inputs) views_.push_back(input.view());
    run(views_.data(), static_cast<int64_t>(views_.size()), options);
  }
  void run(const dhlo_tensor* inputs, int64_t count, const dhlo_run_options* options = nullptr) {
    check(dhlo_session_run_with(get(), inputs, count, options));
  }
  // Stops the run in progress, from any thread.
  void cancel() noexcept { dhlo_session_cancel(get()); }
  Tensor output(int64_t index) const {
    dhlo_tensor view;
    check(dhlo_session_output(get(), index, &view));
    return Tensor(view);
  }
  // The caller's memory for an output of all later runs; nullptr undoes it.
  void bind_output(int64_t index, void* data, int64_t capacity) {
    check(dhlo_session_bind_output(get(), index, data, capacity));
  }
  // State by name: `T` elements, as many as the state has.
  template <class T>
  std::vector<T> read_state(const std::string& name) const {
    const dhlo_model* model = dhlo_session_model(get());
    int64_t bytes = 0;  // an unknown name is refused below
    for (int64_t i = 0; i < dhlo_model_num_states(model); ++i)
      if (name == dhlo_model_state(model, i)->name) bytes = dhlo_model_state(model, i)->bytes;
    if (static_cast<size_t>(bytes) % sizeof(T) != 0)
      throw RuntimeError(DHLO_INVALID_ARGUMENT, ("state '" + name + "' of " + std::to_string(bytes) +
                                                 " bytes is no whole number of elements of that type")
                                                    .c_str());
    std::vector<T> data(static_cast<size_t>(bytes) / sizeof(T));
    check(dhlo_session_read_state(get(), name.c_str(), data.data(), bytes));
    return data;
  }
  template <class T>
  void write_state(const std::string& name, const std::vector<T>& data) {
    check(dhlo_session_write_state(get(), name.c_str(), data.data(), static_cast<int64_t>(data.size() * sizeof(T))));
  }
  // A state's memory, which lives as long as the session: see dhlo_session_state.
  Tensor state(const std::string& name) const {
    dhlo_tensor view;
    check(dhlo_session_state(get(), name.c_str(), &view));
    return Tensor(view);
  }
  void reset_state() { check(dhlo_session_reset_state(get())); }
  // A session with the same state and random generator; options as in runtime.h.
  Session copy(const dhlo_session_options* options = nullptr) const {
    dhlo_session* session = nullptr;
    const dhlo_status status = dhlo_session_copy(get(), options, &session);
    if (status != DHLO_OK) throw RuntimeError(status, dhlo_last_error());
    return Session(session);
  }
  // A session of another entry with the same state: one runs at a time.
  Session sharing(const Model& entry, const dhlo_session_options* options = nullptr) const {
    dhlo_session* session = nullptr;
    const dhlo_status status = dhlo_session_create_sharing(get(), entry.get(), options, &session);
    if (status != DHLO_OK) throw RuntimeError(status, dhlo_last_error());
    return Session(session);
  }
  // State and random generator, to be restored in any session of a model with the same states.
  std::vector<uint8_t> snapshot() const {
    std::vector<uint8_t> data(static_cast<size_t>(dhlo_session_snapshot_bytes(get())));
    check(dhlo_session_snapshot(get(), data.data(), static_cast<int64_t>(data.size())));
    return data;
  }
  void restore(const std::vector<uint8_t>& snapshot) {
    check(dhlo_session_restore(get(), snapshot.data(), static_cast<int64_t>(snapshot.size())));
  }
  // Random numbers of later runs follow from the seed.
  void seed(uint64_t value) { check(dhlo_session_seed(get(), value)); }
  // Frees arena, scratch and runtime-owned outputs.
  void trim() { check(dhlo_session_trim(get())); }
  dhlo_counters counters() const {
    dhlo_counters counters{};
    counters.struct_bytes = sizeof counters;
    dhlo_session_counters(get(), &counters);
    return counters;
  }

 private:
  struct Destroy {
    void operator()(dhlo_session* session) const noexcept { dhlo_session_destroy(session); }
  };
  explicit Session(dhlo_session* session) noexcept : session_(session) {}
  void check(dhlo_status status) const {
    if (status == DHLO_OK) return;
    const bool here = status == DHLO_BUSY || get() == nullptr;  // the text is the thread's
    throw RuntimeError(status, here ? dhlo_last_error() : dhlo_session_error(get()));
  }

  std::unique_ptr<dhlo_session, Destroy> session_;
  std::vector<dhlo_tensor> views_;
};

}  // namespace dhlo

#endif
