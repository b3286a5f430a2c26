// Which blocks a sequence at its bound goes on without, as PagedEviction (arXiv 2509.04377) has it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dhlo::serve {

struct EvictionOptions {
  int64_t blocks = 0;     // of a sequence at most; 0: any number
  int64_t sinks = 1;      // at its beginning, which stay
  int64_t recent = 1;     // at its end, which stay
  bool by_norms = false;  // of those between, the one goes whose values' norms over its keys' are least; else the first
};

struct CacheOptions;
// Why a cache can't evict as its options say; "" if it can.
std::string refused_eviction(const CacheOptions& options);

// What blocks of a group are worth by that.
class BlockNorms {
 public:
  // Memory [heads, slots, depth]; its rows are multiplied by scales [heads, slots] if there are any.
  struct Pool {
    const uint8_t* data;
    const float* scales;
    int64_t depth;
    int32_t dtype;
  };

  void create(int64_t num_blocks, int64_t block_slots);
  // Throws std::bad_alloc.
  void add(const Pool& keys, const Pool& values, int64_t heads);
  // The mean of |V| / |K| over a full block's tokens and all heads of all pools; above 0.
  float score(int32_t block) noexcept;

 private:
  struct Pair {
    Pool keys, values;
    int64_t heads;
  };

  void square(const Pool& pool, int64_t slot, std::vector<float>& sums) noexcept;

  int64_t num_blocks_ = 0, block_slots_ = 0;
  std::vector<Pair> pairs_;
  std::vector<float> rows_, keys_, values_;  // of a head in a block: its rows, and sums of squares of each
};

}  // namespace dhlo::serve
