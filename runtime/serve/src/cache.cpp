// Keys and values of many sequences in pools of blocks: which blocks a sequence has, what is shared, what is kept.
#include "cache.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <system_error>

#include "status.hpp"

namespace dhlo::serve {
namespace {

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
// Evicted at once where there are many blocks: what is evicted one by one, last block first, is no run to give out.
constexpr int64_t kEvicted = FreeBlocks::kRun;

std::string refused(const CacheOptions& options) {
  auto text = [](const char* what, int64_t got) { return std::string(what) + ", got " + std::to_string(got); };
  if (options.block_slots < 1) return text("block_slots must be positive", options.block_slots);
  if (options.num_blocks < 1 || options.num_blocks > kMostBlocks)
    return text("num_blocks must be 1 to 2147483647", options.num_blocks);
  const TierOptions& tiers = options.tiers;
  const bool has_store = tiers.store.put != nullptr || tiers.store.get != nullptr;
  if (!options.prefix && (has_store || !tiers.folder.empty())) return "tiers: they keep nothing without `prefix`";
  if (!tiers.folder.empty() && tiers.folder_bytes < 1)
    return text("tiers: folder_bytes must be positive", tiers.folder_bytes);
  if (tiers.staging_bytes < 0) return text("tiers: staging_bytes must not be negative", tiers.staging_bytes);
  if (options.windows.empty()) return "windows: there must be a group";
  for (const int64_t window : options.windows)
    if (window < 0) return text("windows must not be negative", window);
  const auto groups = static_cast<int64_t>(options.windows.size());
  for (const PoolLayout& pool : options.pools) {
    if (pool.heads < 1 || pool.depth_bytes < 1)
      return text("pools: heads and depth_bytes must be positive", std::min(pool.heads, pool.depth_bytes));
    if (pool.group < 0 || pool.group >= groups) return text("pools: there is no such group", pool.group);
  }
  return refused_eviction(options);
}

// The digest that all keys begin with: blocks of another model, or of another layout, are others.
Digest model_digest(const CacheOptions& options) {
  std::vector<int64_t> layout = {options.block_slots, static_cast<int64_t>(options.windows.size())};
  layout.insert(layout.end(), options.windows.begin(), options.windows.end());
  for (const PoolLayout& pool : options.pools) layout.insert(layout.end(), {pool.heads, pool.depth_bytes, pool.group});
  const Digest both[2] = {options.seed, sha256(layout.data(), layout.size() * sizeof(int64_t))};
  return sha256(both, sizeof both);
}

}  // namespace

Sequence::~Sequence() {
  if (state_ != nullptr) cache_->release(state_);
}

int64_t Sequence::cached() const { return state_ == nullptr ? 0 : state_->cached; }
int64_t Sequence::size() const { return state_ == nullptr ? 0 : state_->size; }
int64_t Sequence::evicted() const { return state_ == nullptr ? 0 : state_->evicted; }
int64_t Sequence::capacity() const { return state_ == nullptr ? 0 : cache_->room(*state_) + state_->evicted; }

Result<std::unique_ptr<Cache>> Cache::create(const CacheOptions& options) try {
  std::string wrong = refused(options);
  if (!wrong.empty()) return {DHLO_INVALID_ARGUMENT, "cache: " + wrong};
  std::unique_ptr<Cache> cache(new Cache);
  cache->block_slots_ = options.block_slots;
  cache->num_blocks_ = options.num_blocks;
  cache->prefix_ = options.prefix;
  cache->eviction_ = options.eviction;
  cache->model_ = model_digest(options);
  cache->swapped_bytes_ = std::make_shared<int64_t>(0);
  cache->needed_.resize(options.windows.size());
  cache->groups_.resize(options.windows.size());
  for (size_t g = 0; g < options.windows.size(); ++g) {
    cache->groups_[g].number = static_cast<int64_t>(g);
    cache->groups_[g].window = options.windows[g];
    if (!cache->groups_[g].blocks.create(options.num_blocks, options.hash_bits))
      return {DHLO_OUT_OF_MEMORY,
              "cache: no memory to keep track of " + std::to_string(options.num_blocks) + " blocks"};
  }
  cache->pools_.resize(options.pools.size());
  for (size_t p = 0; p < options.pools.size(); ++p) {
    const PoolLayout& layout = options.pools[p];
    Pool& pool = cache->pools_[p];
    pool.heads = layout.heads;
    pool.slot_bytes = layout.depth_bytes;
    int64_t block = 0, all = 0;
    const bool fits = !__builtin_mul_overflow(layout.heads, layout.depth_bytes, &block) &&
                      !__builtin_mul_overflow(block, options.block_slots, &block) &&
                      !__builtin_mul_overflow(block, options.num_blocks, &all);
    if (!fits || !pool.pages.map(all, true))
      return {DHLO_OUT_OF_MEMORY,
              "cache: no memory for pool " + std::to_string(p) + (fits ? " of " + std::to_string(all) + " bytes" : "")};
    Group& group = cache->groups_[static_cast<size_t>(layout.group)];
    group.pools.push_back(p);
    group.block_bytes += block;  // no more than all pools, which are mapped
  }
  if (options.eviction.by_norms) cache->add_norms(options);
  TierLayout layout{cache->model_, {}};
  std::vector<bool> needed;
  for (const Group& group : cache->groups_) {
    layout.block_bytes.push_back(group.block_bytes);
    needed.push_back(group.window == 0);
  }
  cache->tiers_ = Tiers::create(options.tiers, std::move(layout), std::move(needed));
  cache->flush_ns_ = options.tiers.flush_ns;
  return cache;
} catch (const std::system_error&) {
  return {DHLO_OUT_OF_MEMORY, "cache: the system gives no thread for the tiers"};
} catch (const std::bad_alloc&) {
  return {DHLO_OUT_OF_MEMORY, "out of memory"};  // so short that it needs none
}

Cache::~Cache() { flush(flush_ns_); }

Cache::State* Cache::take_state() noexcept try {
  if (spare_.empty()) {
    spare_.reserve(states_.size() + 1);  // so that giving it back can't fail
    auto made = std::make_unique<State>();
    made->tables.resize(groups_.size());
    made->first.resize(groups_.size());
    states_.push_back(std::move(made));
    return states_.back().get();
  }
  State* state = spare_.back();
  spare_.pop_back();
  return state;
} catch (const std::bad_alloc&) {
  return nullptr;
}

// The last blocks first: of a chain that is kept, they are evicted before those that they follow.
void Cache::drop_from(State& state, size_t group, int64_t block) noexcept {
  std::vector<int32_t>& table = state.tables[group];
  for (auto i = static_cast<int64_t>(table.size()); i-- > std::max(block, state.first[group]);)
    groups_[group].blocks.drop(table[static_cast<size_t>(i)]);
  table.resize(static_cast<size_t>(block));
  state.first[group] = std::min(state.first[group], block);
}

void Cache::release(State* state) noexcept {
  counts_.unused_slots -= unused(*state);
  for (size_t g = 0; g < groups_.size(); ++g) drop_from(*state, g, 0);
  state->keys.clear();
  state->size = state->cached = state->asked = state->evicted = state->gapless = 0;
  spare_.push_back(state);
}

// The first block that a token at the position sees.
int64_t Cache::first_seen(const Group& group, int64_t position) const {
  return group.window == 0 ? 0 : std::max<int64_t>(position - group.window + 1, 0) / block_slots_;
}

// Groups with windows may lack blocks that aren't needed, so one that has the block suffices.
int64_t Cache::known(Tokens prompt, std::string_view salt) const noexcept {
  if (!prefix_ || prompt.size() == 0) return 0;
  Digest key = root_key(model_, salt);
  const int64_t most = most_known(static_cast<int64_t>(prompt.size()));
  for (int64_t i = 0; i < most; ++i) {
    key = block_key(key, {prompt.data() + i * block_slots_, static_cast<size_t>(block_slots_)});
    if (std::none_of(groups_.begin(), groups_.end(),
                     [&](const Group& group) { return group.blocks.index().find(key) >= 0; }))
      return i * block_slots_;
  }
  return most * block_slots_;
}

Sequence Cache::begin(Tokens prompt, std::string_view salt) {
  State* state = take_state();
  if (state == nullptr) return {};
  Sequence sequence(this, state);
  state->asked = static_cast<int64_t>(prompt.size());
  if (!prefix_ || prompt.size() == 0) return sequence;
  state->root = root_key(model_, salt);
  const int64_t most = most_known(state->asked);
  try {
    state->keys.reserve(static_cast<size_t>(most));
    for (std::vector<int32_t>& table : state->tables) table.reserve(static_cast<size_t>(most));
  } catch (const std::bad_alloc&) {
    return {};
  }
  // While it is looked for, `first` is where the blocks that are known without a gap begin.
  int64_t known = 0;
  bool goes_on = true;
  for (int64_t i = 0; i < most && goes_on; ++i) {
    const size_t at = static_cast<size_t>(i * block_slots_);
    state->keys.push_back(
        block_key(i == 0 ? state->root : state->keys.back(), {prompt.data() + at, static_cast<size_t>(block_slots_)}));
    bool whole = true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      int32_t block = groups_[g].blocks.index().find(state->keys.back());
      if (block >= 0)
        groups_[g].blocks.hold(block);
      else if (tiers_ != nullptr)
        block = bring_in(groups_[g], state->keys.back(), i == 0 ? -1 : state->tables[g].back());
      state->tables[g].push_back(block);
      if (block < 0) state->first[g] = i + 1;
      if (block < 0 && groups_[g].window == 0) goes_on = false;
      whole = whole && state->first[g] <= first_seen(groups_[g], (i + 1) * block_slots_);
    }
    if (whole) known = i + 1;
  }
  state->keys.resize(static_cast<size_t>(known));
  state->size = state->cached = known * block_slots_;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int32_t>& table = state->tables[g];
    state->first[g] = first_seen(groups_[g], state->size);
    for (auto i = static_cast<int64_t>(table.size()); i-- > 0;) {
      int32_t& block = table[static_cast<size_t>(i)];
      if (i >= state->first[g] && i < known) continue;
      if (block >= 0) groups_[g].blocks.drop(block);
      block = std::max(block, 0);
    }
    table.resize(static_cast<size_t>(known));
  }
  return sequence;
}

bool Cache::reserve(Sequence& sequence, int64_t tokens) {
  State* state = sequence.state_;
  if (state == nullptr) return false;
  if (tokens > state->size) {
    const auto old = static_cast<int64_t>(state->tables[0].size());
    const int64_t blocks = std::max(blocks_for(tokens - state->evicted), old);
    for (size_t g = 0; g < groups_.size(); ++g) {
      Group& group = groups_[g];
      needed_[g] = blocks - old;
      for (int64_t i = kept(*state) / block_slots_; i < old; ++i)
        if (group.blocks.holders(state->tables[g][static_cast<size_t>(i)]) > 1) ++needed_[g];
      if (needed_[g] > group.blocks.available()) return false;
    }
    try {
      if (notes_copies_ && noted_.capacity() < noted_.size() + groups_.size())  // of a group's last block alone
        noted_.reserve(2 * noted_.size() + groups_.size());
      for (std::vector<int32_t>& table : state->tables)
        if (table.capacity() < static_cast<size_t>(blocks))
          table.reserve(std::max(static_cast<size_t>(blocks), 2 * table.capacity()));
    } catch (const std::bad_alloc&) {
      return false;
    }
    counts_.unused_slots -= unused(*state);
    add_room(*state, blocks);
    counts_.unused_slots += unused(*state);
  }
  counts_.asked_tokens += state->asked;
  if (state->asked > 0) counts_.hit_tokens += state->cached;
  state->asked = 0;
  return true;
}

// needed_ blocks of each group are available.
void Cache::add_room(State& state, int64_t blocks) noexcept {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    std::vector<int32_t>& table = state.tables[g];
    make_free(group, needed_[g]);
    const int64_t written = kept(state) / block_slots_;
    for (auto i = static_cast<size_t>(written); i < table.size(); ++i) {
      const int32_t block = table[i];
      if (group.blocks.holders(block) == 1) {
        if (group.blocks.index().has_key(block)) group.blocks.remove_key(block);
        continue;
      }
      table[i] = group.blocks.take(i == 0 ? -1 : table[i - 1]);
      const int64_t slots = kept(state) - static_cast<int64_t>(i) * block_slots_;
      if (slots > 0) {
        copy_noted(g, block * block_slots_, table[i] * block_slots_, slots);
        ++counts_.copies;
      }
      group.blocks.drop(block);
    }
    while (static_cast<int64_t>(table.size()) < blocks) {
      const bool alone = static_cast<int64_t>(table.size()) == state.first[g];
      table.push_back(group.blocks.take(alone ? -1 : table.back()));
    }
  }
}

// Evicts kept blocks until so many are free.
void Cache::make_free(Group& group, int64_t blocks) noexcept {
  const int64_t missing = blocks - group.blocks.free();
  if (missing <= 0) return;
  const int64_t together = std::clamp<int64_t>(num_blocks_ / 64, 1, kEvicted);
  for (int64_t left = std::min(std::max(missing, together), group.blocks.kept()); left > 0; --left) {
    const int32_t block = group.blocks.oldest();
    if (tiers_ != nullptr && !group.blocks.stored(block)) store(group, block);
    group.blocks.evict(block);
    ++counts_.evictions;
  }
}

void Cache::commit(Sequence& sequence, Tokens all) {
  State* state = sequence.state_;
  if (state == nullptr) return;
  const int64_t size = std::min(static_cast<int64_t>(all.size()), room(*state) + state->evicted);
  if (size <= state->size) return;
  counts_.unused_slots -= size - state->size;
  state->size = size;
  if (prefix_ && state->evicted == 0) learn(*state, all);  // others follow from more than their tokens
  drop_behind_windows(*state);
}

// Gives the full blocks that are new their keys.
void Cache::learn(State& state, Tokens all) noexcept {
  const auto full = static_cast<size_t>(state.size / block_slots_), slots = static_cast<size_t>(block_slots_);
  try {
    if (state.keys.capacity() < full) state.keys.reserve(std::max(full, 2 * state.keys.capacity()));
  } catch (const std::bad_alloc&) {
    return;  // with the next ones
  }
  for (size_t i = state.keys.size(); i < full; ++i) {
    state.keys.push_back(block_key(i == 0 ? state.root : state.keys.back(), {all.data() + i * slots, slots}));
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (static_cast<int64_t>(i) < state.first[g]) continue;
      BlockGroup& blocks = groups_[g].blocks;
      int32_t& block = state.tables[g][i];
      const int32_t known = blocks.index().find(state.keys.back());
      if (known < 0) {
        if (blocks.index().has_key(block)) continue;  // another sequence's, which wrote to what it hadn't reserved
        blocks.set_key(block, state.keys.back());
      } else if (known != block) {
        blocks.hold(known);
        blocks.drop(block);
        block = known;
      }
    }
  }
}

void Cache::drop_behind_windows(State& state) noexcept {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto end = static_cast<int64_t>(state.tables[g].size());
    const int64_t seen = std::min(first_seen(groups_[g], state.size), end);
    for (int64_t& i = state.first[g]; i < seen; ++i) groups_[g].blocks.drop(state.tables[g][static_cast<size_t>(i)]);
  }
}

int64_t Cache::truncate(Sequence& sequence, int64_t tokens) {
  State* state = sequence.state_;
  if (state == nullptr) return 0;
  tokens = std::clamp<int64_t>(tokens, 0, room(*state) + state->evicted);
  if (tokens < state->gapless) tokens = 0;
  for (size_t g = 0; g < groups_.size(); ++g)
    if (state->first[g] > first_seen(groups_[g], tokens)) tokens = 0;
  counts_.unused_slots -= unused(*state);
  if (tokens == 0) state->evicted = state->gapless = 0;
  for (size_t g = 0; g < groups_.size(); ++g) drop_from(*state, g, blocks_for(tokens - state->evicted));
  state->size = std::min(state->size, tokens);
  state->cached = std::min(state->cached, tokens);
  state->keys.resize(std::min(state->keys.size(), static_cast<size_t>(kept(*state) / block_slots_)));
  counts_.unused_slots += unused(*state);
  return tokens;
}

Sequence Cache::fork(const Sequence& sequence) {
  const State* from = sequence.state_;
  State* state = from == nullptr ? nullptr : take_state();
  if (state == nullptr) return {};
  Sequence other(this, state);
  const auto blocks = static_cast<size_t>(blocks_for(kept(*from)));
  try {
    state->keys.reserve(from->keys.size());
    for (std::vector<int32_t>& table : state->tables) table.reserve(blocks);
  } catch (const std::bad_alloc&) {
    return {};
  }
  state->keys.assign(from->keys.begin(), from->keys.end());
  state->root = from->root;
  state->size = from->size;
  state->cached = from->cached;
  state->evicted = from->evicted;
  state->gapless = from->gapless;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto begin = from->tables[g].begin();
    state->tables[g].assign(begin, begin + static_cast<std::ptrdiff_t>(blocks));
    state->first[g] = std::min(from->first[g], static_cast<int64_t>(blocks));
    for (auto i = static_cast<size_t>(state->first[g]); i < blocks; ++i) groups_[g].blocks.hold(state->tables[g][i]);
  }
  counts_.unused_slots += unused(*state);
  return other;
}

Span<const int32_t> Cache::table(const Sequence& sequence, int64_t group) const {
  if (sequence.state_ == nullptr) return {};
  const std::vector<int32_t>& table = sequence.state_->tables[static_cast<size_t>(group)];
  return {table.data(), table.size()};
}

int64_t Cache::slot(const Sequence& sequence, int64_t group, int64_t position) const {
  if (position < 0 || position >= sequence.capacity() || position < sequence.state_->gapless) return -1;
  const std::vector<int32_t>& table = sequence.state_->tables[static_cast<size_t>(group)];
  position -= sequence.state_->evicted;
  return table[static_cast<size_t>(position / block_slots_)] * block_slots_ + position % block_slots_;
}

CacheStats Cache::stats() const {
  CacheStats stats = counts_;
  stats.blocks = num_blocks_;
  for (const Group& group : groups_) {
    if (&group != &groups_[0] && group.blocks.used() <= stats.used) continue;
    stats.used = group.blocks.used();
    stats.shared = group.blocks.shared();
    stats.kept = group.blocks.kept();
  }
  stats.swapped_bytes = *swapped_bytes_;
  if (tiers_ != nullptr) {
    stats.folder = tiers_->folder_stats();
    stats.store = tiers_->store_stats();
  }
  return stats;
}

}  // namespace dhlo::serve
