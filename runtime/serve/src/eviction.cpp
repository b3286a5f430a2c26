// Which blocks a sequence at its bound goes on without.
#include "eviction.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cache.hpp"
#include "dhlo/runtime.h"
#include "lanes.hpp"

namespace dhlo::serve {
namespace {

float sum_of_squares(const float* x, int64_t n) {
  constexpr int64_t kParts = 16;  // added side by side
  float parts[kParts] = {};
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts)
    for (int64_t j = 0; j < kParts; ++j) parts[j] += x[i + j] * x[i + j];
  float sum = 0;
  for (; i < n; ++i) sum += x[i] * x[i];
  for (const float part : parts) sum += part;
  return sum;
}

}  // namespace

void BlockNorms::create(int64_t num_blocks, int64_t block_slots) {
  num_blocks_ = num_blocks;
  block_slots_ = block_slots;
  keys_.resize(static_cast<size_t>(block_slots));
  values_.resize(static_cast<size_t>(block_slots));
}

void BlockNorms::add(const Pool& keys, const Pool& values, int64_t heads) {
  // Vectors are widened whole.
  const int64_t most = (std::max(keys.depth, values.depth) * block_slots_ + kLanes - 1) / kLanes * kLanes;
  rows_.resize(std::max(rows_.size(), static_cast<size_t>(most)));
  pairs_.push_back({keys, values, heads});
}

// Of each row of a block of a head, which begins at the slot.
void BlockNorms::square(const Pool& pool, int64_t slot, std::vector<float>& sums) noexcept {
  const int64_t first = slot * pool.depth, count = block_slots_ * pool.depth;
  const float* rows = rows_.data();
  switch (pool.dtype) {
    case DHLO_BF16:
    case DHLO_F16: {
      const auto widen = pool.dtype == DHLO_BF16 ? lanes().widen_bf16 : lanes().widen_f16;
      widen(reinterpret_cast<const uint16_t*>(pool.data) + first, count, rows_.data());
      break;
    }
    case DHLO_I8: std::copy_n(reinterpret_cast<const int8_t*>(pool.data) + first, count, rows_.data()); break;
    default: rows = reinterpret_cast<const float*>(pool.data) + first;
  }
  for (int64_t i = 0; i < block_slots_; ++i) {
    const float scale = pool.scales != nullptr ? pool.scales[slot + i] : 1.0F;
    sums[static_cast<size_t>(i)] = sum_of_squares(rows + i * pool.depth, pool.depth) * scale * scale;
  }
}

float BlockNorms::score(int32_t block) noexcept {
  double sum = 0;
  int64_t count = 0;
  for (const Pair& pair : pairs_) {
    for (int64_t head = 0; head < pair.heads; ++head) {
      const int64_t slot = (head * num_blocks_ + block) * block_slots_;
      square(pair.keys, slot, keys_);
      square(pair.values, slot, values_);
      for (size_t i = 0; i < keys_.size(); ++i)
        sum += keys_[i] > 0 ? std::sqrt(values_[i] / keys_[i]) : 0.0F;  // a key of zeros tells its token from no other
    }
    count += pair.heads * block_slots_;
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(std::max<int64_t>(count, 1)));
  return mean > FLT_MIN ? mean : FLT_MIN;
}

std::string refused_eviction(const CacheOptions& options) {
  const EvictionOptions& how = options.eviction;
  if (how.blocks == 0) return "";
  if (how.blocks < 0 || how.sinks < 0 || how.recent < 0 || how.sinks > how.blocks || how.recent > how.blocks ||
      how.sinks + how.recent >= how.blocks)
    return "eviction: no block may go";
  if (how.blocks > options.num_blocks) return "eviction: the pools have no room for so many blocks";
  if (options.windows != std::vector<int64_t>{0}) return "eviction: groups have no windows";
  if (!how.by_norms) return "";
  bool pairs = false;
  const auto pools = static_cast<int64_t>(options.pools.size());
  for (const PoolLayout& pool : options.pools) {
    if (std::max(pool.keys, pool.scales) >= pools || std::min(pool.keys, pool.scales) < -1)
      return "eviction: a pool goes with others";
    pairs = pairs || pool.keys >= 0;
    // Small floats are read in vectors.
    if (pool.depth_bytes * options.block_slots % (16 * static_cast<int64_t>(sizeof(uint16_t))) != 0)
      return "eviction: norms are of blocks with a multiple of 16 numbers a head";
    if (pool.keys >= 0 && options.pools[static_cast<size_t>(pool.keys)].heads != pool.heads)
      return "eviction: keys and values have as many heads";
  }
  return pairs ? "" : "eviction: there are no pools of keys and values to take norms of";
}

void Cache::add_norms(const CacheOptions& options) {
  for (Group& group : groups_) group.norms.create(num_blocks_, block_slots_);
  auto pool = [&](int64_t index) {
    const PoolLayout& layout = options.pools[static_cast<size_t>(index)];
    const float* scales = layout.scales < 0 ? nullptr : static_cast<const float*>(this->pool(layout.scales));
    return BlockNorms::Pool{static_cast<const uint8_t*>(this->pool(index)), scales,
                            layout.depth_bytes / dhlo_dtype_bytes(layout.dtype), layout.dtype};
  };
  for (int64_t p = 0; p < static_cast<int64_t>(options.pools.size()); ++p) {
    const PoolLayout& layout = options.pools[static_cast<size_t>(p)];
    if (layout.keys >= 0)
      groups_[static_cast<size_t>(layout.group)].norms.add(pool(layout.keys), pool(p), layout.heads);
  }
}

// Of a full block, in all groups; read from its keys and values once.
float Cache::score(const State& state, int64_t block) noexcept {
  float sum = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t number = state.tables[g][static_cast<size_t>(block)];
    if (groups_[g].blocks.score(number) == 0) groups_[g].blocks.set_score(number, groups_[g].norms.score(number));
    sum += groups_[g].blocks.score(number);
  }
  return sum;
}

int64_t Cache::evict(Sequence& sequence, int64_t blocks) noexcept {
  State* state = sequence.state_;
  if (state == nullptr) return 0;
  const int64_t first = eviction_.sinks;
  int64_t gone = 0;
  for (int64_t end = kept(*state) / block_slots_ - eviction_.recent; gone < blocks && first < end; --end, ++gone) {
    int64_t least = first;
    if (eviction_.by_norms)
      for (int64_t i = first + 1; i < end; ++i)
        if (score(*state, i) < score(*state, least)) least = i;
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::vector<int32_t>& table = state->tables[g];
      groups_[g].blocks.drop(table[static_cast<size_t>(least)]);
      table.erase(table.begin() + least);
    }
    // Keys go with blocks. Those of blocks to come follow from what the sequence has no more: they get none.
    if (least < static_cast<int64_t>(state->keys.size())) state->keys.erase(state->keys.begin() + least);
    state->gapless = std::max(state->gapless, (least + 1) * block_slots_ + state->evicted);
    state->evicted += block_slots_;
  }
  counts_.evicted_blocks += gone;
  return gone;
}

}  // namespace dhlo::serve
