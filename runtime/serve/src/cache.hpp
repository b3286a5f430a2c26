// Keys and values of many sequences in pools of blocks: which blocks a sequence has, what is shared, what is kept.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "eviction.hpp"
#include "pages.hpp"
#include "result.hpp"
#include "span.hpp"
#include "tiers.hpp"

namespace dhlo::serve {

// A pool [heads, slots, depth].
struct PoolLayout {
  int64_t heads;
  int64_t depth_bytes;  // of one slot of one head
  int64_t group;
  int32_t dtype = 0;    // a dhlo_dtype; this and what follows is for norms alone
  int64_t keys = -1;    // of a pool of values: that of the keys that they go with
  int64_t scales = -1;  // the pool of f32 whose numbers its rows are multiplied by
};

struct CacheOptions {
  int64_t block_slots = 0;
  int64_t num_blocks = 0;        // of each group
  std::vector<int64_t> windows;  // a group each: keys that a token sees at most, itself among them; 0: all
  std::vector<PoolLayout> pools;
  bool prefix = true;              // keep blocks of sequences that ended for others that begin alike
  std::array<uint8_t, 32> seed{};  // of the model: content, dtype, layout; salts all keys
  TierOptions tiers;               // where blocks go that the pools have no room for; need `prefix`
  EvictionOptions eviction;        // for groups without windows
  int hash_bits = 64;              // of keys, that choose where a block is looked for: fewer make collisions, in tests
};

// Slots of one block that get what those of another, or others of it, hold, before these are written to.
struct SlotCopy {
  int32_t group, from, to, slots;
};

// Counts of blocks are those of the group with the most in use.
struct CacheStats {
  int64_t blocks = 0;
  int64_t used = 0;          // held by sequences
  int64_t shared = 0;        // of them, by more than one
  int64_t kept = 0;          // held by none, for sequences that begin alike
  int64_t unused_slots = 0;  // of what sequences have reserved, without a token
  int64_t asked_tokens = 0;  // of sequences that were begun and given room
  int64_t hit_tokens = 0;    // of them, whose keys and values were known
  int64_t copies = 0;        // of blocks before they were written to
  int64_t evictions = 0;
  int64_t swapped_bytes = 0;   // that sequences out of the pools take now
  int64_t evicted_blocks = 0;  // that sequences went on without
  TierStats folder, store;
};

class Cache;

// A sequence's blocks: a table for each group. Its blocks are released when it is destroyed, which must be before the
// cache is.
class Sequence {
 public:
  Sequence() = default;  // of no cache
  Sequence(Sequence&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), state_(std::exchange(other.state_, nullptr)) {}
  Sequence& operator=(Sequence&& other) noexcept {
    std::swap(cache_, other.cache_);
    std::swap(state_, other.state_);
    return *this;
  }
  ~Sequence();

  // Not of a cache, or there was no memory to make it.
  explicit operator bool() const { return state_ != nullptr; }
  int64_t cached() const;    // tokens that were known when it began
  int64_t size() const;      // tokens whose keys and values are written, those of evicted blocks among them
  int64_t evicted() const;   // tokens of evicted blocks; those behind lie so many slots before their positions
  int64_t capacity() const;  // tokens that it has blocks for

 private:
  friend class Cache;
  struct State {
    std::vector<std::vector<int32_t>> tables;  // of each group, all of one length
    std::vector<int64_t> first;                // of each group: the first block that it still holds
    std::vector<Digest> keys;                  // of full blocks
    Digest root;
    int64_t size = 0, cached = 0;
    int64_t asked = 0;    // tokens of the prompt, until they are counted
    int64_t evicted = 0;  // tokens
    int64_t gapless = 0;  // behind this position nothing was evicted
  };
  Sequence(Cache* cache, State* state) : cache_(cache), state_(state) {}

  Cache* cache_ = nullptr;
  State* state_ = nullptr;
};

// A sequence out of the pools, in memory of the host's. May outlive the cache.
class SwappedSequence {
 public:
  SwappedSequence() = default;
  SwappedSequence(SwappedSequence&& other) noexcept { *this = std::move(other); }
  SwappedSequence& operator=(SwappedSequence&& other) noexcept;
  ~SwappedSequence();

  // Whether it holds one.
  explicit operator bool() const { return counter_ != nullptr; }
  int64_t size() const { return size_; }

 private:
  friend class Cache;
  std::vector<std::vector<uint8_t>> data_;  // of each group: blocks from first_ on
  std::vector<int64_t> first_;
  std::vector<Digest> keys_;
  Digest root_{};
  int64_t size_ = 0, cached_ = 0, bytes_ = 0, evicted_ = 0, gapless_ = 0;
  std::shared_ptr<int64_t> counter_;  // the cache's, of bytes that are swapped out
};

// One thread calls it. Nothing throws but create() and copy(); where memory is short, results say so.
class Cache {
 public:
  // Maps the pools, with huge pages where the system lets it; memory is taken as it is written to.
  // DHLO_INVALID_ARGUMENT for options out of range, DHLO_OUT_OF_MEMORY where the pools can't be mapped.
  static Result<std::unique_ptr<Cache>> create(const CacheOptions& options);
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  // Writes what is kept to the tiers, as flush() does.
  ~Cache();

  // Memory of a pool, [heads, num_blocks() * block_slots(), depth].
  void* pool(int64_t index) const { return pools_[static_cast<size_t>(index)].pages.data(); }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_slots() const { return block_slots_; }
  int64_t num_groups() const { return static_cast<int64_t>(groups_.size()); }

  // Takes the blocks of the longest known beginning of the prompt: whole blocks, at most prompt.size() - 1 tokens. Only
  // what was computed under the same salt is known. An empty Sequence if there is no memory.
  Sequence begin(Tokens prompt, std::string_view salt);
  // About how many tokens begin() would find in the pools now.
  int64_t known(Tokens prompt, std::string_view salt) const noexcept;
  // Room for so many tokens in all. Blocks that will be written to are the sequence's own afterwards (copy on write),
  // so it must be called before tokens are written, even where there is room. False: too little room, nothing has
  // changed.
  bool reserve(Sequence& sequence, int64_t tokens);
  // Keys and values of all of these are written: full blocks become known by their content, and blocks behind windows
  // are given back. Tokens that were committed before must be the same; those behind the room are ignored. A block that
  // is known already takes the place of the sequence's own.
  void commit(Sequence& sequence, Tokens all);
  // Back to so many tokens, written or not; room for more is given back. Returns how many it has: 0 where the blocks of
  // a window that ends there are gone, or a block that was evicted lay behind.
  int64_t truncate(Sequence& sequence, int64_t tokens);
  // The sequence goes on without so many of its full blocks at most, and gives no more blocks to those that begin
  // alike. Returns how many there were that may go.
  int64_t evict(Sequence& sequence, int64_t blocks) noexcept;
  // What lies so many positions behind `end` moves to those from `end` on: `from` ascends. All have room, and nothing
  // behind `end` is committed. False: there is no memory to note it.
  bool gather(const Sequence& sequence, int64_t end, Span<const int32_t> from) noexcept;
  // Another one of the same tokens; shares all blocks with it. An empty Sequence if there is no memory.
  Sequence fork(const Sequence& sequence);

  // Block numbers; those before a window may be any. Valid until the sequence is changed.
  Span<const int32_t> table(const Sequence& sequence, int64_t group) const;
  // Where in the group's pools the position lies; -1 where the sequence has no block for it, and before what was
  // evicted.
  int64_t slot(const Sequence& sequence, int64_t group, int64_t position) const;
  // Of a group: no block from this one on has ever been taken; memory of those below may be written to soon.
  int64_t opened(int64_t group) const { return groups_[static_cast<size_t>(group)].blocks.opened(); }
  // Of a group: free, or could be evicted.
  int64_t free_blocks(int64_t group) const { return groups_[static_cast<size_t>(group)].blocks.available(); }
  int64_t blocks_for(int64_t tokens) const {
    return tokens <= 0 ? 0 : tokens / block_slots_ + (tokens % block_slots_ != 0 ? 1 : 0);
  }

  // From now on, what is copied is noted until take_copies(), for caches of other processes that are to hold the same.
  void note_copies() { notes_copies_ = true; }
  const std::vector<SlotCopy>& copies() const { return noted_; }
  void clear_copies() { noted_.clear(); }
  // A copy that another process's cache has noted. Throws Error if there are no such blocks.
  void copy(const SlotCopy& copy);

  // Takes the sequence's tokens out of the pools, for preemption. Without memory for it: an empty one, and the sequence
  // stays as it is.
  SwappedSequence swap_out(Sequence& sequence);
  // Brings it back: blocks that are still known are shared, others copied. Without room: an empty sequence, and the
  // swapped one stays as it is.
  Sequence swap_in(SwappedSequence& swapped);

  // Begins to bring what the tiers have of the prompt, and of no block twice; begin() takes what has come until then. A
  // number for prefetched(); 0 if the pools have it all, or there are no tiers.
  int64_t prefetch(Tokens prompt, std::string_view salt);
  // Whether all has come that comes.
  bool prefetched(int64_t prefetch) const { return prefetch == 0 || tiers_ == nullptr || tiers_->is_fetched(prefetch); }
  // Waits for it, so long at most.
  void wait_prefetched(int64_t prefetch, std::chrono::nanoseconds timeout);
  // Writes what is kept to the tiers, where it stays known, too. False if that takes longer.
  bool flush(int64_t timeout_ns);
  // Nothing is written to the tiers or read from them any more; waits for calls of the host's store that are in work.
  void end_tiers() noexcept {
    if (tiers_ != nullptr) tiers_->end();
  }

  CacheStats stats() const;

 private:
  friend class Sequence;
  using State = Sequence::State;
  struct Group {
    BlockGroup blocks;
    int64_t number = 0, window = 0;
    int64_t block_bytes = 0;  // of all its pools
    std::vector<size_t> pools;
    BlockNorms norms;
  };
  struct Pool {
    Pages pages;
    int64_t heads = 0, slot_bytes = 0;
  };

  Cache() = default;
  void add_norms(const CacheOptions& options);
  State* take_state() noexcept;
  void release(State* state) noexcept;
  void add_room(State& state, int64_t blocks) noexcept;
  void make_free(Group& group, int64_t blocks) noexcept;
  void store(Group& group, int32_t block) noexcept;
  int32_t bring_in(Group& group, const Digest& key, int32_t last) noexcept;
  void learn(State& state, Tokens all) noexcept;
  void drop_behind_windows(State& state) noexcept;
  void drop_from(State& state, size_t group, int64_t block) noexcept;
  void give_up(State& state, size_t group) noexcept;
  int64_t first_seen(const Group& group, int64_t position) const;
  int64_t room(const State& state) const { return static_cast<int64_t>(state.tables[0].size()) * block_slots_; }
  // Tokens whose keys and values it still has: so many slots of its table are written.
  static int64_t kept(const State& state) { return state.size - state.evicted; }
  int64_t unused(const State& state) const { return room(state) - kept(state); }
  // Blocks that a prompt of so many tokens may begin with: one is always computed.
  int64_t most_known(int64_t tokens) const {
    const int64_t blocks = (tokens - 1) / block_slots_;
    return eviction_.blocks > 0 ? std::min(blocks, eviction_.blocks) : blocks;
  }
  float score(const State& state, int64_t block) noexcept;
  // Calls piece(where, bytes) for what the group's pools have of a block, head by head.
  template <class Piece>
  void each_piece(const Group& group, int32_t block, Piece&& piece) const noexcept;
  void copy_slots(const Group& group, int64_t from, int64_t to, int64_t slots) noexcept;
  void copy_noted(size_t group, int64_t from, int64_t to, int64_t slots) noexcept;
  void read_block(const Group& group, int32_t block, uint8_t* out) const noexcept;
  void write_block(const Group& group, int32_t block, const uint8_t* data) noexcept;

  int64_t block_slots_ = 0, num_blocks_ = 0;
  bool prefix_ = true;
  EvictionOptions eviction_;
  Digest model_{};  // of seed and layout
  std::vector<Group> groups_;
  std::vector<Pool> pools_;
  std::vector<std::unique_ptr<State>> states_;  // all that were made
  std::vector<State*> spare_;
  std::vector<int64_t> needed_;  // by group, of the reservation in work
  std::shared_ptr<int64_t> swapped_bytes_;
  std::unique_ptr<Tiers> tiers_;  // null: none
  int64_t flush_ns_ = 0;
  bool notes_copies_ = false;
  std::vector<SlotCopy> noted_;
  CacheStats counts_;
};

}  // namespace dhlo::serve
