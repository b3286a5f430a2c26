// The blocks of a group: which are free, held by sequences, or kept for sequences to come.
#include "blocks.hpp"

#include <algorithm>

namespace dhlo::serve {

bool NumberSet::create(int64_t bound) {
  for (int64_t words = bound;;) {
    words = (words + 63) / 64;
    levels_.emplace_back();
    words_.push_back(words);
    if (!levels_.back().map(words)) return false;
    if (words <= 1) return true;
  }
}

void NumberSet::add(int64_t i) noexcept {
  for (PageArray<uint64_t>& level : levels_) {
    uint64_t& word = level[i / 64];
    const bool was_empty = word == 0;
    word |= uint64_t{1} << (i % 64);
    if (!was_empty) return;
    i /= 64;
  }
}

void NumberSet::remove(int64_t i) noexcept {
  for (PageArray<uint64_t>& level : levels_) {
    uint64_t& word = level[i / 64];
    word &= ~(uint64_t{1} << (i % 64));
    if (word != 0) return;
    i /= 64;
  }
}

int64_t NumberSet::next(int64_t from) const noexcept {
  int64_t at = from;
  for (size_t level = 0; level < levels_.size(); ++level) {
    if (at / 64 >= words_[level]) return -1;
    const uint64_t rest = levels_[level][at / 64] & ~uint64_t{0} << (at % 64);
    if (rest == 0) {
      at = at / 64 + 1;
      continue;
    }
    at = at / 64 * 64 + __builtin_ctzll(rest);
    while (level-- > 0) at = at * 64 + __builtin_ctzll(levels_[level][at]);
    return at;
  }
  return -1;
}

bool NumberSet::has_all(int64_t first, int64_t count) const noexcept {
  const uint64_t all = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  return (levels_[0][first / 64] >> (first % 64) & all) == all;
}

bool FreeBlocks::create(int64_t blocks) {
  blocks_ = count_ = blocks;
  return free_.create(blocks) && runs_.create((blocks + kRun - 1) / kRun);
}

bool FreeBlocks::is_free(int64_t block) noexcept {
  while (block >= opened_ && opened_ < blocks_) open();
  return block < blocks_ && free_.has(block);
}

// The next 64 blocks.
void FreeBlocks::open() noexcept {
  const int64_t end = std::min(opened_ + 64, blocks_);
  for (int64_t run = opened_ / kRun; (run + 1) * kRun <= end; ++run) runs_.add(run);
  for (; opened_ < end; ++opened_) free_.add(opened_);
}

int32_t FreeBlocks::claim(int64_t block) noexcept {
  free_.remove(block);
  if (runs_.has(block / kRun)) runs_.remove(block / kRun);
  --count_;
  return static_cast<int32_t>(block);
}

int64_t FreeBlocks::find_run(int64_t from) noexcept {
  for (;;) {
    int64_t run = runs_.next(from);
    if (run < 0) run = runs_.next(0);
    if (run >= 0) return run * kRun;
    if (opened_ == blocks_) return -1;
    open();
  }
}

int32_t FreeBlocks::take(int32_t last) noexcept {
  if (count_ == 0) return -1;
  const int64_t after = int64_t{last} + 1;
  if (last >= 0 && is_free(after)) return claim(after);
  int64_t block = find_run(after / kRun);
  if (block < 0) block = free_.next(after);  // all are open now
  if (block < 0) block = free_.next(0);
  return claim(block);
}

void FreeBlocks::give(int32_t block) noexcept {
  free_.add(block);
  ++count_;
  const int64_t first = block / kRun * kRun;
  if (free_.has_all(first, kRun)) runs_.add(block / kRun);
}

bool BlockGroup::create(int64_t blocks, int hash_bits) {
  return free_.create(blocks) && index_.create(blocks, hash_bits) && states_.map(blocks);
}

int32_t BlockGroup::take(int32_t last) noexcept {
  const int32_t block = free_.take(last);
  if (block < 0) return -1;
  states_[block] = {1, 0, 0, false, 0};
  ++used_;
  return block;
}

void BlockGroup::hold(int32_t block) noexcept {
  const int32_t holders = ++states_[block].holders;
  if (holders == 2) ++shared_;
  if (holders > 1) return;
  unlink(block);
  ++used_;
}

void BlockGroup::drop(int32_t block) noexcept {
  const int32_t holders = --states_[block].holders;
  if (holders == 1) --shared_;
  if (holders > 0) return;
  --used_;
  if (!index_.has_key(block)) {
    free_.give(block);
    return;
  }
  states_[block] = {0, newest_, 0, states_[block].stored, states_[block].score};
  (newest_ == 0 ? oldest_ : states_[int64_t{newest_} - 1].newer) = static_cast<uint32_t>(block) + 1;
  newest_ = static_cast<uint32_t>(block) + 1;
  ++kept_;
}

void BlockGroup::unlink(int32_t block) noexcept {
  const State state = states_[block];
  (state.older == 0 ? oldest_ : states_[int64_t{state.older} - 1].newer) = state.newer;
  (state.newer == 0 ? newest_ : states_[int64_t{state.newer} - 1].older) = state.older;
  --kept_;
}

void BlockGroup::evict(int32_t block) noexcept {
  unlink(block);
  index_.erase(block);
  free_.give(block);
}

}  // namespace dhlo::serve
