// Adapters (LoRA) by name: rows of an input of the step.
#include "adapters.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <set>

#include "status.hpp"

namespace dhlo::serve {
namespace {

constexpr int64_t kMostPairs = 1 << 20;
constexpr size_t kMostName = 1 << 10;

float from_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float widen_f16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest < 0x400) return (sign != 0 ? -1.0F : 1.0F) * std::ldexp(static_cast<float>(rest), -24);
  return from_bits(sign | ((rest << 13) + 0x38000000u));
}

// Of the bits of an f32, those above `shift`, the last one rounded to even.
uint32_t rounded(uint32_t bits, int shift) {
  return (bits + ((uint32_t{1} << (shift - 1)) - 1) + (bits >> shift & 1)) >> shift;
}

uint16_t narrow_bf16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>(rounded(to_bits(value), 16));
}

uint16_t narrow_f16(float value) {
  const uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (rest < 0x38800000u)                                                 // subnormal there: multiples of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::ldexp(from_bits(rest), 24))));
  return static_cast<uint16_t>(sign | rounded(rest - 0x38000000u, 13));
}

float read(const void* from, int32_t dtype, int64_t i) {
  // Matrices of files may lie anywhere.
  const auto* bytes = static_cast<const uint8_t*>(from);
  if (dtype == DHLO_F32) {
    float value = 0;
    std::memcpy(&value, bytes + i * 4, sizeof value);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, bytes + i * 2, sizeof half);
  return dtype == DHLO_BF16 ? from_bits(uint32_t{half} << 16) : widen_f16(half);
}

void put(void* to, int32_t dtype, int64_t i, float value) {
  if (dtype == DHLO_F32)
    static_cast<float*>(to)[i] = value;
  else
    static_cast<uint16_t*>(to)[i] = dtype == DHLO_BF16 ? narrow_bf16(value) : narrow_f16(value);
}

// Whether a product's name is that of the module, or ends with it behind a dot.
bool is_of(const char* product, const char* module) {
  const size_t whole = std::strlen(product), part = std::strlen(module);
  return whole >= part && std::memcmp(product + (whole - part), module, part) == 0 &&
         (whole == part || product[whole - part - 1] == '.');
}

// Pairs of a host that was built with a header that knows fewer fields, or more: each says how large it is.
std::vector<dhlo_lora_pair> read_pairs(const dhlo_lora_pair* first, int64_t count) {
  const uint32_t bytes = first->struct_bytes;
  std::vector<dhlo_lora_pair> pairs;
  for (int64_t i = 0; i < count; ++i) {
    const auto* at = reinterpret_cast<const dhlo_lora_pair*>(reinterpret_cast<const uint8_t*>(first) + i * bytes);
    if (at->struct_bytes != bytes) refuse("dhlo_lora_pair: pairs of an array have the same struct_bytes");
    pairs.push_back(
        read_struct(at, dhlo_lora_pair_init, offsetof(dhlo_lora_pair, scale) + sizeof(double), "dhlo_lora_pair"));
  }
  return pairs;
}

std::string shape(int64_t rows, int64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

}  // namespace

Adapters::Adapters(const Step& step) : layout_(step.adapters()) {
  if (layout_ == nullptr) return;
  const dhlo_abi_value& weights = step.adapter_weights();
  dtype_ = static_cast<int32_t>(weights.dtype);
  row_bytes_ = weights.sizes[1] * dhlo_dtype_bytes(dtype_);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(row_bytes_, weights.sizes[0], &bytes) || !weights_.map(bytes, true))
    throw std::bad_alloc();
  slots_.resize(static_cast<size_t>(weights.sizes[0]));
}

Adapters::Slot* Adapters::find(const std::string& name) {
  const auto at = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.used && s.name == name; });
  return at == slots_.end() ? nullptr : &*at;
}

void Adapters::load(const std::string& name, const dhlo_lora_pair* given, int64_t count) {
  if (layout_ == nullptr) refuse("the step was compiled without room for adapters: compile it with lora");
  if (name.empty() || name.size() > kMostName)
    refuse("an adapter's name has from 1 to " + std::to_string(kMostName) + " bytes");
  if (count < 1 || count > kMostPairs || given == nullptr) refuse("adapter '" + name + "' has no pairs of matrices");
  const std::vector<dhlo_lora_pair> pairs = read_pairs(given, count);
  std::set<const dhlo_abi_adapted*> known;
  for (const dhlo_lora_pair& pair : pairs) {
    check(pair);
    if (!known.insert(&product(pair.module)).second)
      refuse("adapter '" + name + "' has module '" + pair.module + "' twice");
  }
  Slot* slot = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (find(name) != nullptr) refuse("there is an adapter '" + name + "' already");
    const auto at = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.used; });
    if (at == slots_.end())
      throw Error(DHLO_BUSY, "there is room for " + std::to_string(slots_.size()) +
                                 " adapters, all of which are there, or given up and in use by requests");
    slot = &*at;
    slot->name = name;
    slot->used = true;
    slot->ready = false;
  }
  // Nobody else has the row, and nothing throws from here on.
  uint8_t* row = weights_.data() + (slot - slots_.data()) * row_bytes_;
  std::memset(row, 0, static_cast<size_t>(row_bytes_));
  for (const dhlo_lora_pair& pair : pairs) write(pair, row);
  const Digest content = sha256(row, static_cast<size_t>(row_bytes_));
  const std::lock_guard<std::mutex> lock(mutex_);
  slot->content = content;
  slot->ready = true;
}

const dhlo_abi_adapted& Adapters::product(const char* module) const {
  const dhlo_abi_adapted *begin = layout_->products, *end = begin + layout_->num_products;
  auto named = [&](const dhlo_abi_adapted& p) { return is_of(p.name, module); };
  const auto* first = std::find_if(begin, end, named);
  if (first == end) refuse("module '" + std::string(module) + "' isn't one that the step has room for in adapters");
  if (std::find_if(first + 1, end, named) != end) refuse("module '" + std::string(module) + "' may be one of several");
  return *first;
}

void Adapters::check(const dhlo_lora_pair& pair) const {
  if (pair.module == nullptr || *pair.module == '\0') refuse("a pair of matrices is of no module");
  const std::string module = pair.module;
  const dhlo_abi_adapted& p = product(pair.module);
  if (pair.a == nullptr || pair.b == nullptr) refuse("module '" + module + "': a matrix is null");
  if (pair.dtype != DHLO_F32 && pair.dtype != DHLO_BF16 && pair.dtype != DHLO_F16)
    refuse("module '" + module + "': matrices are of float32, bfloat16 or float16");
  if (pair.rank < 1 || pair.rank > layout_->rank)
    refuse("module '" + module + "': its rank is " + std::to_string(pair.rank) + ", and the step has room for " +
           std::to_string(layout_->rank));
  if (pair.inputs != p.inputs || pair.outputs != p.outputs)
    refuse("module '" + module + "': matrices of " + shape(pair.rank, pair.inputs) + " and " +
           shape(pair.outputs, pair.rank) + ", where the step takes " + shape(pair.rank, p.inputs) + " and " +
           shape(p.outputs, pair.rank));
  if (!(std::fabs(pair.scale) <= static_cast<double>(std::numeric_limits<float>::max())))
    refuse("module '" + module + "': its scale isn't finite");
}

void Adapters::write(const dhlo_lora_pair& pair, uint8_t* row) const {
  const dhlo_abi_adapted& p = product(pair.module);
  const int64_t rank = layout_->rank, size = dhlo_dtype_bytes(dtype_);
  uint8_t *a = row + p.offset * size, *b = a + p.inputs * rank * size;
  for (int64_t r = 0; r < pair.rank; ++r)
    for (int64_t k = 0; k < p.inputs; ++k) put(a, dtype_, k * rank + r, read(pair.a, pair.dtype, r * p.inputs + k));
  const auto scale = static_cast<float>(pair.scale);
  for (int64_t r = 0; r < pair.rank; ++r)
    for (int64_t n = 0; n < p.outputs; ++n)
      put(b, dtype_, r * p.outputs + n, scale * read(pair.b, pair.dtype, n * pair.rank + r));
}

void Adapters::unload(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Slot* slot = name.empty() ? nullptr : find(name);
  if (slot == nullptr || !slot->ready) refuse("there is no adapter '" + name + "'");
  slot->name.clear();
  slot->ready = false;
  slot->used = slot->holds > 0;
}

Adapters::Hold Adapters::take(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Slot* slot = name.empty() ? nullptr : find(name);
  if (slot == nullptr || !slot->ready) refuse("there is no adapter '" + name + "'");
  ++slot->holds;
  return {this, static_cast<int32_t>(slot - slots_.data()), slot->content};
}

void Adapters::release(int32_t number) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(number)];
  --slot.holds;
  if (slot.name.empty() && slot.holds == 0) slot.used = false;
}

}  // namespace dhlo::serve
