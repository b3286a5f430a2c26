// What requests are about: read, and computed once for each.
#include "sources.hpp"

#include <algorithm>
#include <cstring>

#include "status.hpp"

namespace dhlo::serve {
namespace {

std::string text_of(const int64_t* sizes, int64_t rank) {
  std::string text = "[";
  for (int64_t d = 0; d < rank; ++d) text += (d > 0 ? ", " : "") + (sizes[d] < 0 ? "any" : std::to_string(sizes[d]));
  return text + "]";
}

std::string dtype_name(int64_t dtype) {
  return dtype >= 0 && dtype < DHLO_DTYPE_COUNT ? dhlo_dtype_name(static_cast<int32_t>(dtype)) : "no dtype";
}

// Throws Error for what an input can't be; the bytes that it has.
int64_t bytes_of(const dhlo_abi_value& value, const dhlo_tensor& given) {
  const std::string name = std::string("input '") + value.name + "'";
  if (given.dtype != value.dtype)
    refuse(name + " is of " + dtype_name(value.dtype) + ", got " + dtype_name(given.dtype));
  bool fits = given.rank == value.rank && (given.rank == 0 || given.sizes != nullptr);
  int64_t bytes = dhlo_dtype_bytes(given.dtype);
  for (int64_t d = 0; fits && d < value.rank; ++d)
    fits = given.sizes[d] >= 0 && (value.sizes[d] < 0 || value.sizes[d] == given.sizes[d]) &&
           !__builtin_mul_overflow(bytes, given.sizes[d], &bytes);
  if (!fits || bytes > INT64_MAX / 2) {
    const bool shown = given.sizes != nullptr && given.rank >= 0 && given.rank <= DHLO_ABI_MAX_RANK;
    refuse(name + " is " + text_of(value.sizes, value.rank) + ", got " +
           (shown ? text_of(given.sizes, given.rank) : "another number of dims"));
  }
  if (given.strides != nullptr) {
    int64_t dense = 1;
    for (int64_t d = given.rank; d-- > 0; dense *= given.sizes[d])
      if (given.sizes[d] > 1 && given.strides[d] != dense && bytes > 0) refuse(name + ": its elements lie in a row");
  }
  if (given.data == nullptr && bytes > 0) refuse(name + " is null");
  return bytes;
}

}  // namespace

Sources::Sources(dhlo_model* encoder, const dhlo_model* step, const int64_t* cross, int64_t num_cross,
                 int64_t block_slots, int64_t positions)
    : block_slots_(block_slots), positions_(positions) {
  if (dhlo_model_paging(encoder) != nullptr) refuse("encoder: it is a step over pools of blocks, and no encoder");
  if (dhlo_model_num_outputs(encoder) != num_cross)
    refuse("encoder: it gives " + std::to_string(dhlo_model_num_outputs(encoder)) + " tensors, and the step reads " +
           std::to_string(num_cross) + " of a source");
  bool any = false;  // number of positions: of an output
  for (int64_t i = 0; i < num_cross; ++i) {
    const dhlo_abi_value& made = *dhlo_model_output(encoder, i);
    const dhlo_abi_value& pool = *dhlo_model_input(step, cross[i]);
    if (made.rank != 4 || made.dtype != pool.dtype || made.sizes[0] != 1 || made.sizes[1] != pool.sizes[0] ||
        made.sizes[2] == 0 || made.sizes[3] != pool.sizes[2])
      refuse("encoder: output " + std::to_string(i) + " is " + text_of(made.sizes, made.rank) + " of " +
             dtype_name(made.dtype) + ", and '" + pool.name + "' takes [1, " + std::to_string(pool.sizes[0]) +
             ", positions, " + std::to_string(pool.sizes[2]) + "] of " + dtype_name(pool.dtype));
    any |= made.sizes[2] < 0;
    if (made.sizes[2] > 0 && positions > 0)
      refuse("max_source_positions: the encoder gives " + std::to_string(made.sizes[2]) + " of them, always");
    if (made.sizes[2] > 0 && positions_ == 0) positions_ = made.sizes[2];
    if (made.sizes[2] > 0 && made.sizes[2] != positions_)
      refuse("encoder: one of its outputs has " + std::to_string(positions_) + " positions, and output " +
             std::to_string(i) + " has " + std::to_string(made.sizes[2]));
    const int64_t row_bytes = made.sizes[3] * dhlo_dtype_bytes(static_cast<int32_t>(made.dtype));
    pools_.push_back({Pages(), made.sizes[1], row_bytes, static_cast<int32_t>(made.dtype)});
  }
  // Where one output says how many there are, those of any number come to as many.
  if (any && positions_ == 0)
    refuse("max_source_positions: the encoder gives any number of them, for which there must be room");
  if (positions_ > INT32_MAX / 2) refuse("encoder: it gives more positions than fit, " + std::to_string(positions_));
  blocks_ = (positions_ + block_slots - 1) / block_slots;
  num_inputs_ = dhlo_model_num_inputs(encoder);
  for (int64_t k = 0; k < num_inputs_; ++k)
    if (dhlo_model_input(encoder, k)->name == nullptr || dhlo_model_input_is_updated(encoder, k) != 0)
      refuse("encoder: input " + std::to_string(k) + " has no name, or a run writes to it");
  dhlo_model_retain(encoder);
  model_.reset(encoder);
  dhlo_session* session = nullptr;
  if (const dhlo_status status = dhlo_session_create(encoder, nullptr, &session); status != DHLO_OK)
    throw Error(status, dhlo_last_error());
  session_.reset(session);
}

std::unique_ptr<Source> Sources::read(const char* const* names, const dhlo_tensor* inputs, int64_t count) const {
  if (count != 0 && (names == nullptr || inputs == nullptr || count < 0 || count > num_inputs_))
    refuse("inputs: the model takes " + std::to_string(num_inputs_) + ", got " + std::to_string(count));
  auto source = std::make_unique<Source>();
  std::vector<const dhlo_tensor*> given(static_cast<size_t>(num_inputs_), nullptr);
  for (int64_t i = 0; i < count; ++i) {
    int64_t k = 0;
    while (k < num_inputs_ && (names[i] == nullptr || std::strcmp(names[i], input(k).name) != 0)) ++k;
    if (k == num_inputs_)
      refuse("inputs: the model takes no '" + std::string(names[i] != nullptr ? names[i] : "") + "'");
    if (given[static_cast<size_t>(k)] != nullptr) refuse(std::string("inputs: '") + names[i] + "' is given twice");
    given[static_cast<size_t>(k)] = &inputs[i];
  }
  std::vector<dhlo_tensor> tensors;
  std::vector<int64_t> sizes;
  for (int64_t k = 0; k < num_inputs_; ++k) {
    const dhlo_tensor* tensor = given[static_cast<size_t>(k)];
    if (tensor == nullptr) refuse(std::string("inputs: the model needs '") + input(k).name + "'");
    sizes.push_back(bytes_of(input(k), *tensor));
    tensors.push_back(*tensor);
  }
  need_room(tensors);
  Digest all{};
  for (int64_t k = 0; k < num_inputs_; ++k) {
    const dhlo_tensor* tensor = given[static_cast<size_t>(k)];
    const int64_t bytes = sizes[static_cast<size_t>(k)];
    source->sizes.emplace_back();
    std::copy_n(tensor->sizes, tensor->rank, source->sizes.back().begin());
    const auto* data = static_cast<const uint8_t*>(tensor->data);
    source->data.emplace_back(data, data + bytes);
    const Digest parts[] = {all, sha256(source->sizes.back().data(), sizeof source->sizes.back()),
                            sha256(source->data.back().data(), static_cast<size_t>(bytes))};
    all = sha256(parts, sizeof parts);
  }
  source->content = all;
  return source;
}

void Sources::need_room(const std::vector<dhlo_tensor>& inputs) const {
  std::vector<dhlo_shape> made(pools_.size());
  if (const dhlo_status status = dhlo_model_plan(model_.get(), inputs.data(), num_inputs_, made.data(), nullptr);
      status != DHLO_OK)
    throw Error(status, std::string("inputs: ") + dhlo_last_error());
  for (const dhlo_shape& shape : made)
    if (shape.rank >= 0 && shape.sizes[2] > positions_)
      refuse("inputs: the source has " + std::to_string(shape.sizes[2]) + " positions, and there is room for " +
             std::to_string(positions_));
}

int64_t Sources::place_bytes() const {
  int64_t all = 0;
  for (const Pool& pool : pools_) {
    int64_t bytes = pool.heads * pool.row_bytes;
    if (__builtin_mul_overflow(bytes, blocks_ * block_slots_, &bytes) || __builtin_add_overflow(all, bytes, &all))
      return INT64_MAX;
  }
  return all;
}

int64_t Sources::most_places() const { return INT32_MAX / (blocks_ * block_slots_); }

void Sources::map(int64_t places) {
  const bool fits = places <= most_places();
  places_ = places;
  for (Pool& pool : pools_) {
    int64_t bytes = pool.heads * pool.row_bytes;
    // In huge pages one source would take the room of several: heads lie far apart.
    if (!fits || __builtin_mul_overflow(bytes, slots(), &bytes) || !pool.pages.map(bytes, false))
      throw Error(DHLO_OUT_OF_MEMORY, "no memory for the sources of " + std::to_string(places) + " sequences, of " +
                                          std::to_string(positions_) + " positions each: give max_sequences");
  }
  free_.reserve(static_cast<size_t>(places));
  lengths_.resize(static_cast<size_t>(places));
  for (int64_t place = places; place-- > 0;) free_.push_back(static_cast<int32_t>(place));
}

int32_t Sources::take() noexcept {
  if (free_.empty()) return -1;
  const int32_t place = free_.back();
  free_.pop_back();
  return place;
}

void Sources::give(int32_t place) noexcept {
  if (place >= 0) free_.push_back(place);  // never more than there were at first
}

dhlo_status Sources::encode(const Source& source, int32_t place) {
  std::vector<std::array<int64_t, DHLO_ABI_MAX_RANK>> sizes = source.sizes;
  std::vector<dhlo_tensor> tensors;
  for (int64_t k = 0; k < num_inputs_; ++k) {
    const auto at = static_cast<size_t>(k);
    auto* data = const_cast<uint8_t*>(source.data[at].data());
    tensors.push_back({data, sizes[at].data(), nullptr, static_cast<int32_t>(input(k).dtype),
                       static_cast<int32_t>(input(k).rank), 0});
  }
  error_.clear();
  dhlo_status status = dhlo_session_run(session_.get(), tensors.data(), num_inputs_);
  if (status != DHLO_OK) error_ = dhlo_session_error(session_.get());
  for (size_t i = 0; status == DHLO_OK && i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    dhlo_tensor made;
    status = dhlo_session_output(session_.get(), static_cast<int64_t>(i), &made);
    int64_t& length = lengths_[static_cast<size_t>(place)];
    if (status == DHLO_OK && i == 0) length = made.sizes[2];
    if (status == DHLO_OK && (length > positions_ || made.sizes[2] != length)) {  // which data told
      error_ = length > positions_ ? "the source has " + std::to_string(length) + " positions, and there is room for " +
                                         std::to_string(positions_)
                                   : "its first output has " + std::to_string(length) + " positions, and output " +
                                         std::to_string(i) + " has " + std::to_string(made.sizes[2]);
      status = DHLO_INVALID_ARGUMENT;
    }
    if (status != DHLO_OK) break;
    const int64_t head = length * pool.row_bytes, first = place * blocks_ * block_slots_ * pool.row_bytes;
    for (int64_t h = 0; h < pool.heads; ++h)
      std::memcpy(pool.pages.data() + h * slots() * pool.row_bytes + first,
                  static_cast<const uint8_t*>(made.data) + h * head, static_cast<size_t>(head));
  }
  return status;
}

}  // namespace dhlo::serve
