// The blocks of a group: which are free, held by sequences, or kept for sequences to come.
#pragma once

#include <cstdint>
#include <vector>

#include "pages.hpp"
#include "prefix.hpp"

namespace dhlo::serve {

// A set of numbers below a bound; the next one from anywhere on is found in O(log of the bound, base 64).
class NumberSet {
 public:
  bool create(int64_t bound);
  void add(int64_t i) noexcept;
  void remove(int64_t i) noexcept;
  bool has(int64_t i) const noexcept { return (levels_[0][i / 64] >> (i % 64) & 1) != 0; }
  // The least that is at least `from`; -1 if there is none.
  int64_t next(int64_t from) const noexcept;
  // Whether all of `count` (up to 64) numbers from a multiple of `count` on, a power of two, are in it.
  bool has_all(int64_t first, int64_t count) const noexcept;

 private:
  std::vector<PageArray<uint64_t>> levels_;  // of each: which words of the one below aren't 0
  std::vector<int64_t> words_;
};

// Free blocks, given out so that a sequence's follow one another where they can: kernels read those in one piece.
class FreeBlocks {
 public:
  // Blocks that a new sequence finds free behind its first one where there is room, that first one among them.
  static constexpr int64_t kRun = 16;

  bool create(int64_t blocks);
  int64_t count() const noexcept { return count_; }
  int64_t opened() const noexcept { return opened_; }
  // The block behind `last` (-1: none) if it is free, else the first of kRun free ones, else any; -1 if there is none.
  int32_t take(int32_t last) noexcept;
  void give(int32_t block) noexcept;

 private:
  bool is_free(int64_t block) noexcept;
  int32_t claim(int64_t block) noexcept;
  void open() noexcept;
  int64_t find_run(int64_t from) noexcept;

  NumberSet free_, runs_;  // blocks; runs of kRun of them, from multiples of kRun on, that are wholly free
  int64_t blocks_ = 0, count_ = 0;
  int64_t opened_ = 0;  // blocks from here on are free, but not in free_ yet: what isn't needed isn't touched
};

// Blocks with their holders and keys. A block that nobody holds is free, or kept if it has a key, until it is evicted:
// those that were given back first go first. All in O(1).
class BlockGroup {
 public:
  bool create(int64_t blocks, int hash_bits);
  // Free or kept.
  int64_t available() const noexcept { return free_.count() + kept_; }
  int64_t free() const noexcept { return free_.count(); }
  // Blocks from here on have never been taken.
  int64_t opened() const noexcept { return free_.opened(); }
  int64_t used() const noexcept { return used_; }
  int64_t shared() const noexcept { return shared_; }
  int64_t kept() const noexcept { return kept_; }

  // A free block, held once then; -1 if none is.
  int32_t take(int32_t last) noexcept;
  // One more holder of a block that is held or kept.
  void hold(int32_t block) noexcept;
  // One less.
  void drop(int32_t block) noexcept;
  int32_t holders(int32_t block) const noexcept { return states_[block].holders; }

  const PrefixIndex& index() const noexcept { return index_; }
  // Of a block that is held.
  void set_key(int32_t block, const Digest& key) noexcept { index_.insert(block, key); }
  void remove_key(int32_t block) noexcept {
    index_.erase(block);
    states_[block].stored = false;
    states_[block].score = 0;
  }
  // The kept block that is evicted next; -1 if there is none.
  int32_t oldest() const noexcept { return static_cast<int32_t>(oldest_) - 1; }
  // The kept block that goes behind it; -1 for the last.
  int32_t newer(int32_t block) const noexcept { return static_cast<int32_t>(states_[block].newer) - 1; }
  // Frees a kept block.
  void evict(int32_t block) noexcept;
  // Of a block with a key: whether it is outside memory, too.
  bool stored(int32_t block) const noexcept { return states_[block].stored; }
  void set_stored(int32_t block) noexcept { states_[block].stored = true; }
  // Of what a full block holds (BlockNorms): 0 until it is set; of a block that is held.
  float score(int32_t block) const noexcept { return states_[block].score; }
  void set_score(int32_t block, float score) noexcept { states_[block].score = score; }

 private:
  struct State {
    int32_t holders;
    uint32_t older, newer;  // of kept blocks: neighbours by age, their number + 1; 0: none
    bool stored;
    float score;
  };

  void unlink(int32_t block) noexcept;

  FreeBlocks free_;
  PrefixIndex index_;
  PageArray<State> states_;
  uint32_t oldest_ = 0, newest_ = 0;  // number + 1
  int64_t used_ = 0, shared_ = 0, kept_ = 0;
};

}  // namespace dhlo::serve
