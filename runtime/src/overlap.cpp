// Which of a call's tensors share memory.
#include "overlap.hpp"

#include <algorithm>
#include <numeric>

namespace dhlo {
namespace {

// Comparisons after which a search is given up: far more than slices of one buffer need, some 50 us.
constexpr int kSearchLimit = 4096;
// More than a process can address, and small enough that sums of a few stay in 64 bits.
constexpr int64_t kAddressable = int64_t{1} << 56;

// A part of a region: its dims from `rank` on are fixed.
struct Part {
  int64_t begin;  // from a common origin
  int64_t run;
  int32_t rank;
  const Region::Dim* dims;

  int64_t end() const {
    int64_t last = begin + run;
    for (int32_t d = 0; d < rank; ++d) last += (dims[d].size - 1) * dims[d].stride;
    return last;
  }
};

// All runs begin at multiples of one number, which leaves the other's room: interleaved heads, keys beside values.
bool in_other_lanes(const Part& a, const Part& b) {
  int64_t lane = 0;
  for (int32_t d = 0; d < a.rank; ++d) lane = std::gcd(lane, a.dims[d].stride);
  for (int32_t d = 0; d < b.rank; ++d) lane = std::gcd(lane, b.dims[d].stride);
  if (lane == 0) return false;
  const int64_t ahead = ((b.begin - a.begin) % lane + lane) % lane;
  return a.run <= ahead && ahead + b.run <= lane;
}

// Cuts the part with the widest step into slices and compares those that the other's range meets.
bool search(const Part& a, const Part& b, int* left) {
  if (a.begin >= b.end() || b.begin >= a.end()) return false;
  if (a.rank == 0 && b.rank == 0) return true;
  if (in_other_lanes(a, b)) return false;
  const bool cut_a = b.rank == 0 || (a.rank > 0 && a.dims[a.rank - 1].stride >= b.dims[b.rank - 1].stride);
  const Part &cut = cut_a ? a : b, &other = cut_a ? b : a;
  const Region::Dim dim = cut.dims[cut.rank - 1];
  Part slice{cut.begin, cut.run, cut.rank - 1, cut.dims};
  const int64_t first = std::max<int64_t>((other.begin - slice.end()) / dim.stride, 0);
  const int64_t last = std::min((other.end() - slice.begin) / dim.stride, dim.size - 1);
  for (int64_t i = first; i <= last; ++i) {
    if (--*left < 0) return true;
    slice.begin = cut.begin + i * dim.stride;
    if (search(slice, other, left)) return true;
  }
  return false;
}

}  // namespace

bool addressable(const dhlo_tensor& tensor, int64_t item) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (tensor.strides == nullptr) return true;  // the number of elements has been checked
  int64_t below = 0, above = item;
  bool overflow = address > static_cast<uintptr_t>(kAddressable), empty = false;
  for (int32_t d = 0; d < tensor.rank; ++d) {
    empty |= tensor.sizes[d] == 0;
    if (tensor.sizes[d] <= 1) continue;
    int64_t reach = 0;
    overflow |= __builtin_mul_overflow(tensor.strides[d], item, &reach);
    overflow |= __builtin_mul_overflow(tensor.sizes[d] - 1, reach, &reach);
    overflow |= reach > kAddressable || reach < -kAddressable;
    // Wraps, if at all, in a tensor that has overflowed already.
    int64_t& end = reach < 0 ? below : above;
    end = static_cast<int64_t>(static_cast<uint64_t>(end) + static_cast<uint64_t>(reach));
  }
  return empty || (!overflow && static_cast<int64_t>(address) + below >= 0 && above <= kAddressable);
}

void find_region(const dhlo_tensor& tensor, int64_t item, Region* region) noexcept {
  *region = Region{};
  region->begin = region->end = static_cast<const uint8_t*>(tensor.data);
  for (int32_t d = 0; d < tensor.rank; ++d)
    if (tensor.sizes[d] == 0) return;
  int64_t dense = item, below = 0, above = item;  // bytes from the first element down and up to the last byte
  for (int32_t d = tensor.rank - 1; d >= 0; --d) {
    const int64_t size = tensor.sizes[d];
    if (size == 1) continue;
    const int64_t stride = tensor.strides != nullptr ? tensor.strides[d] * item : dense;
    dense *= size;
    const int64_t reach = (size - 1) * stride;
    (reach < 0 ? below : above) += reach;
    if (stride == 0)
      region->folded = true;
    else
      region->dims[region->rank++] = {size, stride < 0 ? -stride : stride};
  }
  region->end = region->begin + above;
  region->begin += below;
  std::sort(region->dims, region->dims + region->rank,
            [](const Region::Dim& a, const Region::Dim& b) { return a.stride < b.stride; });
  region->run = item;
  int64_t span = item;  // bytes from first to last of the dims so far
  int32_t kept = 0;
  for (int32_t d = 0; d < region->rank; ++d) {
    const Region::Dim dim = region->dims[d];
    region->folded |= dim.stride < span;
    span += (dim.size - 1) * dim.stride;
    if (kept == 0 && dim.stride <= region->run)
      region->run += (dim.size - 1) * dim.stride;
    else
      region->dims[kept++] = dim;
  }
  region->rank = kept;
}

Region whole_region(const void* data, int64_t bytes) noexcept {
  Region region;
  region.begin = static_cast<const uint8_t*>(data);
  region.end = region.begin + bytes;
  region.run = bytes;
  return region;
}

bool share_bytes(const Region& a, const Region& b) noexcept {
  if (a.empty() || b.empty() || a.begin >= b.end || b.begin >= a.end) return false;
  const auto from_a = [&a](const Region& r) {
    return Part{static_cast<int64_t>(reinterpret_cast<uintptr_t>(r.begin)) -
                    static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.begin)),
                r.run, r.rank, r.dims};
  };
  int left = kSearchLimit;
  return search(from_a(a), from_a(b), &left);
}

}  // namespace dhlo
