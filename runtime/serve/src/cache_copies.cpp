// What moves within the pools: blocks before they are written to, and what is kept of a tree of drafts.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cache.hpp"
#include "status.hpp"

namespace dhlo::serve {

void Cache::copy(const SlotCopy& copy) {
  const auto known = [this, &copy](int32_t slot) {
    return slot >= 0 && slot < num_blocks_ * block_slots_ && slot % block_slots_ + copy.slots <= block_slots_;
  };
  if (copy.group < 0 || copy.group >= num_groups() || copy.slots < 0 || !known(copy.from) || !known(copy.to) ||
      std::abs(int64_t{copy.from} - copy.to) < std::max(copy.slots, 1))
    throw Error(DHLO_INVALID_ARGUMENT, "cache: there are no such blocks to copy");
  copy_slots(groups_[static_cast<size_t>(copy.group)], copy.from, copy.to, copy.slots);
}

// Of a block, to one.
void Cache::copy_slots(const Group& group, int64_t from, int64_t to, int64_t slots) noexcept {
  for (const size_t p : group.pools) {
    const Pool& pool = pools_[p];
    for (int64_t head = 0; head < pool.heads; ++head) {
      uint8_t* data = pool.pages.data() + head * num_blocks_ * block_slots_ * pool.slot_bytes;
      const auto bytes = static_cast<size_t>(slots * pool.slot_bytes);
      std::memcpy(data + to * pool.slot_bytes, data + from * pool.slot_bytes, bytes);
    }
  }
}

// There is memory to note it.
void Cache::copy_noted(size_t group, int64_t from, int64_t to, int64_t slots) noexcept {
  copy_slots(groups_[group], from, to, slots);
  if (!notes_copies_) return;
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  noted_.push_back({static_cast<int32_t>(group), narrow(from), narrow(to), narrow(slots)});
}

bool Cache::gather(const Sequence& sequence, int64_t end, Span<const int32_t> from) noexcept {
  try {
    const size_t needed = noted_.size() + groups_.size() * from.size();
    if (notes_copies_ && noted_.capacity() < needed) noted_.reserve(2 * needed);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<int64_t>(g);
    for (size_t i = 0; i < from.size(); ++i) {
      const auto to = static_cast<int64_t>(i);
      if (from[i] != to) copy_noted(g, slot(sequence, group, end + from[i]), slot(sequence, group, end + to), 1);
    }
  }
  return true;
}

}  // namespace dhlo::serve
