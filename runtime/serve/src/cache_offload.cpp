// Blocks that leave the pools and come back: to memory of the host and to the tiers.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "cache.hpp"

namespace dhlo::serve {

template <class Piece>
void Cache::each_piece(const Group& group, int32_t block, Piece&& piece) const noexcept {
  for (const size_t p : group.pools) {
    const Pool& pool = pools_[p];
    const int64_t bytes = block_slots_ * pool.slot_bytes;
    for (int64_t head = 0; head < pool.heads; ++head)
      piece(pool.pages.data() + (head * num_blocks_ + block) * bytes, static_cast<size_t>(bytes));
  }
}

void Cache::read_block(const Group& group, int32_t block, uint8_t* out) const noexcept {
  each_piece(group, block, [&](const uint8_t* data, size_t bytes) {
    std::memcpy(out, data, bytes);
    out += bytes;
  });
}

void Cache::write_block(const Group& group, int32_t block, const uint8_t* data) noexcept {
  each_piece(group, block, [&](uint8_t* place, size_t bytes) {
    std::memcpy(place, data, bytes);
    data += bytes;
  });
}

// ---- tiers ----------------------------------------------------------------------------------------------------------

// Copies a block that has a key for the tiers.
void Cache::store(Group& group, int32_t block) noexcept {
  StagedBlock staged = tiers_->stage({group.blocks.index().key(block), group.number});
  if (staged.data == nullptr) return;
  read_block(group, block, staged.data.get());
  tiers_->write(std::move(staged));
}

// A block that the tiers brought, held once; -1 if there is none.
int32_t Cache::bring_in(Group& group, const Digest& key, int32_t last) noexcept {
  if (group.blocks.available() == 0) return -1;
  const StagedBlock staged = tiers_->take({key, group.number});
  if (staged.data == nullptr) return -1;
  make_free(group, 1);
  const int32_t block = group.blocks.take(last);
  write_block(group, block, staged.data.get());
  group.blocks.set_key(block, key);
  group.blocks.set_stored(block);
  return block;
}

int64_t Cache::prefetch(Tokens prompt, std::string_view salt) try {
  if (tiers_ == nullptr || prompt.size() == 0) return 0;
  std::vector<Digest> keys;
  Digest key = root_key(model_, salt);
  const auto slots = static_cast<size_t>(block_slots_);
  const auto most = static_cast<size_t>(most_known(static_cast<int64_t>(prompt.size())));
  for (size_t at = slots; at <= most * slots; at += slots) {
    key = block_key(key, {prompt.data() + at - slots, slots});
    bool known = true;
    for (const Group& group : groups_) known = known && group.blocks.index().find(key) >= 0;
    if (!known || !keys.empty()) keys.push_back(key);
  }
  return keys.empty() ? 0 : tiers_->fetch(std::move(keys));
} catch (const std::bad_alloc&) {
  return 0;
}

void Cache::wait_prefetched(int64_t prefetch, std::chrono::nanoseconds timeout) {
  if (tiers_ != nullptr) tiers_->wait_fetched(prefetch, std::chrono::steady_clock::now() + timeout);
}

bool Cache::flush(int64_t timeout_ns) {
  if (tiers_ == nullptr) return true;
  // No clock goes so far.
  const auto wait = std::chrono::nanoseconds(std::clamp<int64_t>(timeout_ns, 0, int64_t{1} << 60));
  const auto until = std::chrono::steady_clock::now() + wait;
  for (Group& group : groups_) {
    for (int32_t block = group.blocks.oldest(); block >= 0; block = group.blocks.newer(block)) {
      if (group.blocks.stored(block)) continue;
      if (!tiers_->wait_written(until, false)) return false;
      store(group, block);
      group.blocks.set_stored(block);
    }
  }
  return tiers_->wait_written(until, true);
}

// ---- swapped sequences ----------------------------------------------------------------------------------------------

SwappedSequence& SwappedSequence::operator=(SwappedSequence&& other) noexcept {
  data_.swap(other.data_);
  first_.swap(other.first_);
  keys_.swap(other.keys_);
  std::swap(root_, other.root_);
  std::swap(size_, other.size_);
  std::swap(cached_, other.cached_);
  std::swap(bytes_, other.bytes_);
  std::swap(evicted_, other.evicted_);
  std::swap(gapless_, other.gapless_);
  counter_.swap(other.counter_);
  return *this;
}

SwappedSequence::~SwappedSequence() {
  if (counter_ != nullptr) *counter_ -= bytes_;
}

// Of a table that isn't whole (-1: no block) yet.
void Cache::give_up(State& state, size_t group) noexcept {
  std::vector<int32_t>& table = state.tables[group];
  for (auto i = static_cast<int64_t>(table.size()); i-- > state.first[group];)
    if (const int32_t block = table[static_cast<size_t>(i)]; block >= 0) groups_[group].blocks.drop(block);
  table.clear();
  state.first[group] = 0;
}

SwappedSequence Cache::swap_out(Sequence& sequence) try {
  const State* state = sequence.state_;
  if (state == nullptr) return {};
  SwappedSequence swapped;
  const int64_t blocks = blocks_for(kept(*state));
  int64_t bytes = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    swapped.data_.emplace_back(static_cast<size_t>((blocks - std::min(state->first[g], blocks)) * group.block_bytes));
    bytes += static_cast<int64_t>(swapped.data_.back().size());
    uint8_t* out = swapped.data_.back().data();
    for (int64_t i = state->first[g]; i < blocks; ++i, out += group.block_bytes)
      read_block(group, state->tables[g][static_cast<size_t>(i)], out);
  }
  swapped.first_ = state->first;
  swapped.keys_ = state->keys;
  swapped.root_ = state->root;
  swapped.size_ = state->size;
  swapped.cached_ = state->cached;
  swapped.evicted_ = state->evicted;
  swapped.gapless_ = state->gapless;
  swapped.bytes_ = bytes;
  swapped.counter_ = swapped_bytes_;
  *swapped_bytes_ += bytes;
  {
    const Sequence released = std::move(sequence);
  }
  return swapped;
} catch (const std::bad_alloc&) {
  return {};
}

Sequence Cache::swap_in(SwappedSequence& swapped) {
  if (!swapped || swapped.counter_ != swapped_bytes_) return {};
  State* state = take_state();
  if (state == nullptr) return {};
  Sequence sequence(this, state);
  const auto blocks = static_cast<size_t>(blocks_for(swapped.size_ - swapped.evicted_));
  try {
    state->keys = swapped.keys_;
    for (std::vector<int32_t>& table : state->tables) table.reserve(blocks);
  } catch (const std::bad_alloc&) {
    return {};
  }
  // Known blocks first, so that they aren't evicted for the others.
  auto known = [&](size_t g, size_t i) {
    return i < swapped.keys_.size() ? groups_[g].blocks.index().find(swapped.keys_[i]) : -1;
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    state->first[g] = std::min(swapped.first_[g], static_cast<int64_t>(blocks));
    const auto first = static_cast<size_t>(state->first[g]);
    state->tables[g].resize(blocks);
    needed_[g] = 0;
    for (size_t i = first; i < blocks; ++i) {
      const int32_t block = state->tables[g][i] = known(g, i);
      if (block >= 0) groups_[g].blocks.hold(block);
      if (block < 0) ++needed_[g];
    }
  }
  bool fits = true;
  for (size_t g = 0; g < groups_.size(); ++g) fits = fits && needed_[g] <= groups_[g].blocks.available();
  if (!fits) {
    for (size_t g = 0; g < groups_.size(); ++g) give_up(*state, g);
    state->keys.clear();
    return {};
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    std::vector<int32_t>& table = state->tables[g];
    make_free(group, needed_[g]);
    const uint8_t* data = swapped.data_[g].data();
    for (auto i = static_cast<size_t>(state->first[g]); i < blocks; ++i, data += group.block_bytes) {
      if (table[i] >= 0) continue;
      table[i] = group.blocks.take(static_cast<int64_t>(i) == state->first[g] ? -1 : table[i - 1]);
      write_block(group, table[i], data);
      if (i < swapped.keys_.size()) group.blocks.set_key(table[i], swapped.keys_[i]);
    }
  }
  state->root = swapped.root_;
  state->size = swapped.size_;
  state->cached = swapped.cached_;
  state->evicted = swapped.evicted_;
  state->gapless = swapped.gapless_;
  counts_.unused_slots += unused(*state);
  {
    const SwappedSequence done = std::move(swapped);
  }
  return sequence;
}

}  // namespace dhlo::serve
