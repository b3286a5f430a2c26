// A compiled step, and the inputs of its calls: buffers are made once, for the largest.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache.hpp"
#include "dhlo/runtime.h"
#include "pages.hpp"
#include "populate.hpp"
#include "shards.hpp"
#include "sources.hpp"
#include "tree.hpp"

namespace dhlo::serve {

class Step {
 public:
  // Retains the model. Throws Error if it is no step over pools of blocks.
  explicit Step(dhlo_model* model);

  int64_t vocabulary() const { return vocabulary_; }
  int32_t dtype() const { return dtype_; }  // of logits
  int64_t block_slots() const { return paging_->block_slots; }
  int64_t max_positions() const { return paging_->max_positions; }  // 0: any number
  // Of a cache for it: what follows from the model.
  CacheOptions cache_options() const;
  std::vector<PoolMemory> pool_memory(const Cache& cache) const;
  // Of a block of each group, in all pools.
  int64_t block_bytes() const;

  // What the step takes of adapters; null: nothing.
  const dhlo_abi_adapters* adapters() const { return paging_->adapters; }
  const dhlo_abi_value& adapter_weights() const { return *dhlo_model_input(model_.get(), adapters()->weights); }
  // Where they lie, of a step that takes them, once it is attached.
  void set_adapters(void* weights);

  // Whether tokens see the keys before them in tables, whatever their positions are.
  bool by_order() const { return paging_->by_order != 0; }
  // Whether keys and values lie in pools of their own.
  bool has_values() const;

  // Whether drafts may be a tree.
  bool branches() const { return paging_->hidden >= 0; }

  // Whether it keeps states of fixed size of sequences, which can't go back to fewer tokens.
  bool has_states() const { return paging_->num_states > 0; }

  // Whether it attends to what an encoder has made, too.
  bool is_cross() const { return paging_->num_cross > 0; }
  // Of a step with cross attention: what it attends to, once take_encoder() has been called; null for other steps.
  Sources* sources() const { return sources_.get(); }
  // Throws Error where the step needs none, or another one; null: where it needs one.
  void take_encoder(dhlo_model* encoder, int64_t max_positions);

  // Makes the session, which does collective operations by `shards` (null: the step has none), where each call is told
  // to the others. Not needed before attach() without them.
  void open(Shards* shards);
  // What must be alike in all processes that run a step together.
  std::vector<int64_t> kind() const;
  // Makes the buffers. Calls then read and write the cache's pools.
  void attach(Cache& cache, int64_t max_tokens, int64_t max_sequences);

  // A place for the states of a sequence that begins, and back; there are as many as sequences. -1 without states.
  int32_t take_cell();
  void give_cell(int32_t cell);
  // The states of a sequence become those of another.
  void copy_states(int32_t from, int32_t to);

  // What the next call computes: of each sequence `tokens`, from position `first` on, which have room, and then
  // `drafts`, but for the first `known` of them, whose keys and values are there; wanted are the logits of the last
  // `kept` of all these. Returns the row of the first. `adapter`: -1: none; `cell`: where its states are, if the step
  // keeps such; `place`: where that is which it is about, if there is such.
  void clear();
  int64_t add(const Sequence& sequence, int64_t first, Tokens tokens, Drafts drafts, int64_t known, int64_t kept,
              int32_t adapter = -1, int32_t cell = -1, int32_t place = -1);
  // 0 tokens: nothing was added.
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  // If it fails, error() says why, and contents of blocks of these sequences behind their ends are undefined.
  dhlo_status run();
  const char* error() const { return error_.c_str(); }
  // The call that another process has told of, in one that follows it. Logits aren't looked at.
  dhlo_status repeat();
  // Of the last call, of a row; valid until the next.
  const void* logits(int64_t row) const { return logits_ + row * row_bytes_; }
  // Stops a call that is in progress, from any thread.
  void cancel() { dhlo_session_cancel(session_.get()); }

 private:
  struct Release {
    void operator()(dhlo_model* model) const { dhlo_model_release(model); }
    void operator()(dhlo_session* session) const { dhlo_session_destroy(session); }
  };
  struct Group {
    int64_t slots_input, tables_input;
    std::vector<int64_t> slots;
    std::vector<int32_t> tables;
    std::vector<Span<const int32_t>> rows;
  };

  using Sizes = std::array<int64_t, DHLO_ABI_MAX_RANK>;
  struct State {
    Pages pages;
    int64_t cell_bytes;
  };

  std::vector<PoolLayout> pools() const;
  void set(int64_t input, void* data, const Sizes& sizes);
  void make_states(int64_t max_sequences);
  void fill_tables();
  dhlo_status call();

  std::unique_ptr<dhlo_model, Release> model_;
  std::unique_ptr<dhlo_session, Release> session_;
  const dhlo_abi_paging* paging_;
  int64_t ids_input_ = -1, position_ids_input_ = -1, kept_input_ = -1;
  int64_t vocabulary_ = 0, row_bytes_ = 0;
  int32_t dtype_ = 0;

  Cache* cache_ = nullptr;
  std::vector<int64_t> ids_, positions_, kept_;
  std::vector<int32_t> starts_, lengths_, hidden_, chosen_, cells_, cross_tables_, cross_lengths_;
  std::unique_ptr<Sources> sources_;
  std::vector<State> states_;
  std::vector<int32_t> free_cells_;
  std::vector<Group> groups_;
  std::vector<dhlo_tensor> inputs_;
  std::vector<Sizes> sizes_;
  const uint8_t* logits_ = nullptr;
  std::string error_;
  Shards* shards_ = nullptr;
  std::vector<int64_t> told_;         // inputs that are of a call: all but those that stay
  std::vector<int64_t*> told_sizes_;  // of each input
};

}  // namespace dhlo::serve
