// A compiled step, and the inputs of its calls.
#include "step.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "status.hpp"

namespace dhlo::serve {
namespace {

int64_t input_named(const dhlo_model* model, const char* name) {
  for (int64_t i = 0; i < dhlo_model_num_inputs(model); ++i) {
    const char* given = dhlo_model_input(model, i)->name;
    if (given != nullptr && std::strcmp(given, name) == 0) return i;
  }
  return -1;
}

void need_input(const dhlo_model* model, int64_t index, int64_t dtype, int64_t rank) {
  const dhlo_abi_value* value = dhlo_model_input(model, index);
  if (value->dtype != dtype || value->rank != rank)
    refuse("the model is no step: its input '" + std::string(value->name != nullptr ? value->name : "") +
           "' has another dtype or number of dims");
}

int64_t pool_dtype_bytes(const dhlo_abi_value* pool) { return dhlo_dtype_bytes(static_cast<int32_t>(pool->dtype)); }

}  // namespace

Step::Step(dhlo_model* model) : paging_(dhlo_model_paging(model)) {
  if (paging_ == nullptr)
    refuse(
        "the model is no step over pools of blocks: compile it with pages, e.g. dhlo.compile(step_program(model), "
        "pages={\"keys*\": 16, \"values*\": 16})");
  dhlo_model_retain(model);
  model_.reset(model);
  ids_input_ = input_named(model, "input_ids");
  position_ids_input_ = input_named(model, "position_ids");
  kept_input_ = input_named(model, "kept");
  if (ids_input_ < 0) refuse("the model is no step: it has no input 'input_ids'");
  std::vector<bool> known(static_cast<size_t>(dhlo_model_num_inputs(model)), false);
  auto take = [&](int64_t index, int64_t dtype, int64_t rank) {
    if (index < 0) return;
    need_input(model, index, dtype, rank);
    known[static_cast<size_t>(index)] = true;
  };
  take(ids_input_, DHLO_I64, 2);
  take(position_ids_input_, DHLO_I64, 2);
  take(kept_input_, DHLO_I64, 1);
  take(paging_->positions, DHLO_I64, 1);
  take(paging_->starts, DHLO_I32, 1);
  take(paging_->lengths, DHLO_I32, 1);
  for (int64_t g = 0; g < paging_->num_groups; ++g) {
    take(paging_->groups[g].slots, DHLO_I64, 1);
    take(paging_->groups[g].tables, DHLO_I32, 2);
    groups_.push_back({paging_->groups[g].slots, paging_->groups[g].tables, {}, {}, {}});
  }
  if (adapters() != nullptr) {
    take(adapters()->chosen, DHLO_I32, 1);
    take(adapters()->weights, adapter_weights().dtype, 2);
  }
  for (int64_t p = 0; p < paging_->num_pools; ++p) {
    const int64_t input = paging_->pools[p].input;
    take(input, dhlo_model_input(model, input)->dtype, 3);
  }
  take(paging_->hidden, DHLO_I32, 1);
  take(paging_->cells, DHLO_I32, 1);
  take(paging_->cross_tables, DHLO_I32, 2);
  take(paging_->cross_lengths, DHLO_I32, 1);
  for (int64_t i = 0; i < paging_->num_cross; ++i)
    take(paging_->cross[i], dhlo_model_input(model, paging_->cross[i])->dtype, 3);
  for (int64_t s = 0; s < paging_->num_states; ++s) known[static_cast<size_t>(paging_->states[s])] = true;
  for (size_t i = 0; i < known.size(); ++i)
    if (!known[i])
      refuse("the model is no step: nothing is known of its input '" +
             std::string(dhlo_model_input(model, static_cast<int64_t>(i))->name) + "'");
  const dhlo_abi_value* logits = dhlo_model_num_outputs(model) > 0 ? dhlo_model_output(model, 0) : nullptr;
  if (logits == nullptr || logits->rank < 2 || logits->sizes[logits->rank - 1] < 1 ||
      (logits->dtype != DHLO_F32 && logits->dtype != DHLO_BF16 && logits->dtype != DHLO_F16))
    refuse("the model is no step: its first output is no logits [1, rows, vocabulary] of floats");
  vocabulary_ = logits->sizes[logits->rank - 1];
  if (vocabulary_ > INT32_MAX) refuse("the model's vocabulary is too large");
  dtype_ = static_cast<int32_t>(logits->dtype);
  row_bytes_ = vocabulary_ * dhlo_dtype_bytes(dtype_);
}

void Step::take_encoder(dhlo_model* encoder, int64_t max_positions) {
  if (!is_cross() && encoder == nullptr) return;
  if (!is_cross()) refuse("encoder: the step has no cross attention, which would read what it gives");
  if (encoder == nullptr)
    refuse("the step has cross attention: it needs an encoder, which computes what that reads of a request's inputs");
  sources_ = std::make_unique<Sources>(encoder, model_.get(), paging_->cross, paging_->num_cross, block_slots(),
                                       max_positions);
}

CacheOptions Step::cache_options() const {
  CacheOptions made{};
  made.block_slots = block_slots();
  for (int64_t g = 0; g < paging_->num_groups; ++g) made.windows.push_back(paging_->groups[g].window);
  if (made.windows.empty()) made.windows.push_back(0);  // of no pools: sequences are counted by blocks all the same
  made.pools = pools();
  return made;
}

std::vector<PoolMemory> Step::pool_memory(const Cache& cache) const {
  std::vector<PoolMemory> memory;
  for (const PoolLayout& layout : pools()) {
    auto* data = static_cast<uint8_t*>(cache.pool(static_cast<int64_t>(memory.size())));
    const int64_t block = block_slots() * layout.depth_bytes;
    memory.push_back({data, layout.heads, cache.num_blocks() * block, block, layout.group});
  }
  return memory;
}

std::vector<PoolLayout> Step::pools() const {
  std::vector<PoolLayout> pools;
  for (int64_t p = 0; p < paging_->num_pools; ++p) {
    const dhlo_abi_value* value = dhlo_model_input(model_.get(), paging_->pools[p].input);
    const dhlo_abi_pool& pool = paging_->pools[p];
    pools.push_back({value->sizes[0], value->sizes[2] * pool_dtype_bytes(value), pool.group,
                     static_cast<int32_t>(value->dtype), pool.keys, pool.scales});
  }
  return pools;
}

bool Step::has_values() const {
  std::vector<bool> known(static_cast<size_t>(paging_->num_pools), false);
  for (int64_t p = 0; p < paging_->num_pools; ++p) {
    const dhlo_abi_pool& pool = paging_->pools[p];
    if (pool.keys >= 0) known[static_cast<size_t>(p)] = known[static_cast<size_t>(pool.keys)] = true;
    if (pool.scales >= 0) known[static_cast<size_t>(pool.scales)] = true;
  }
  return std::all_of(known.begin(), known.end(), [](bool each) { return each; });
}

int64_t Step::block_bytes() const {
  int64_t bytes = 0;
  for (const PoolLayout& pool : pools()) bytes += pool.heads * pool.depth_bytes * block_slots();
  return bytes;
}

void Step::open(Shards* shards) {
  if (shards != nullptr && is_cross())
    refuse("the step has cross attention: what that reads would be of one process alone");
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  if (shards != nullptr) options.communicator = shards->communicator();
  dhlo_session* session = nullptr;
  if (const dhlo_status status = dhlo_session_create(model_.get(), &options, &session); status != DHLO_OK)
    throw Error(status, dhlo_last_error());
  session_.reset(session);
  shards_ = shards;
}

std::vector<int64_t> Step::kind() const {
  std::vector<int64_t> kind = {vocabulary_, dtype_, block_slots(), max_positions(), paging_->num_pools, kept_input_};
  for (int64_t g = 0; g < paging_->num_groups; ++g) kind.push_back(paging_->groups[g].window);
  for (int64_t i = 0; i < dhlo_model_num_inputs(model_.get()); ++i) {
    const dhlo_abi_value* value = dhlo_model_input(model_.get(), i);
    kind.insert(kind.end(), {value->dtype, value->rank});
  }
  return kind;
}

void Step::attach(Cache& cache, int64_t max_tokens, int64_t max_sequences) {
  if (session_ == nullptr) open(nullptr);
  cache_ = &cache;
  for (std::vector<int64_t>* each : {&ids_, &positions_, &kept_}) each->reserve(static_cast<size_t>(max_tokens));
  for (std::vector<int32_t>* each : {&hidden_, &chosen_}) each->reserve(static_cast<size_t>(max_tokens));
  starts_.reserve(static_cast<size_t>(max_sequences) + 1);
  lengths_.reserve(static_cast<size_t>(max_sequences));
  for (Group& group : groups_) {
    group.slots.reserve(static_cast<size_t>(max_tokens));
    group.rows.reserve(static_cast<size_t>(max_sequences));
  }
  inputs_.resize(static_cast<size_t>(dhlo_model_num_inputs(model_.get())));
  sizes_.resize(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const dhlo_abi_value* value = dhlo_model_input(model_.get(), static_cast<int64_t>(i));
    inputs_[i] = {
        nullptr, sizes_[i].data(), nullptr, static_cast<int32_t>(value->dtype), static_cast<int32_t>(value->rank), 0};
  }
  for (int64_t p = 0; p < paging_->num_pools; ++p) {
    const int64_t input = paging_->pools[p].input;
    const dhlo_abi_value* value = dhlo_model_input(model_.get(), input);
    const int64_t slots = cache.num_blocks() * block_slots();
    set(input, cache.pool(p), {value->sizes[0], slots, value->sizes[2]});
  }
  make_states(max_sequences);
  if (sources_ != nullptr) {
    sources_->map(max_sequences);
    for (int64_t i = 0; i < paging_->num_cross; ++i) {
      const dhlo_abi_value* value = dhlo_model_input(model_.get(), paging_->cross[i]);
      set(paging_->cross[i], sources_->pool(i), {value->sizes[0], sources_->slots(), value->sizes[2]});
    }
    cross_tables_.reserve(static_cast<size_t>(max_sequences * sources_->blocks()));
    cross_lengths_.reserve(static_cast<size_t>(max_sequences));
  }
  for (size_t i = 0; i < inputs_.size(); ++i) told_sizes_.push_back(sizes_[i].data());
  for (size_t i = 0; i < inputs_.size(); ++i)  // pools and states stay where they are
    if (inputs_[i].data == nullptr) told_.push_back(static_cast<int64_t>(i));
  clear();
}

void Step::set_adapters(void* weights) {
  const dhlo_abi_value& value = adapter_weights();
  set(adapters()->weights, weights, {value.sizes[0], value.sizes[1], 0});
}

void Step::make_states(int64_t max_sequences) {
  for (int64_t s = 0; s < paging_->num_states; ++s) {
    const int64_t input = paging_->states[s];
    const dhlo_abi_value* value = dhlo_model_input(model_.get(), input);
    int64_t cell = dhlo_dtype_bytes(static_cast<int32_t>(value->dtype)), all = 0;
    Sizes sizes{max_sequences};
    bool fits = true;
    for (int64_t d = 1; d < value->rank; ++d) {
      sizes[static_cast<size_t>(d)] = value->sizes[d];
      fits = fits && !__builtin_mul_overflow(cell, value->sizes[d], &cell);
    }
    Pages pages;
    if (!fits || __builtin_mul_overflow(cell, max_sequences, &all) || (all > 0 && !pages.map(all, true)))
      throw Error(DHLO_OUT_OF_MEMORY,
                  "no memory for the states of " + std::to_string(max_sequences) + " sequences: give max_sequences");
    set(input, pages.data(), sizes);
    states_.push_back({std::move(pages), cell});
  }
  if (!has_states()) return;
  cells_.reserve(static_cast<size_t>(max_sequences));
  for (int64_t cell = max_sequences; cell-- > 0;) free_cells_.push_back(static_cast<int32_t>(cell));
}

int32_t Step::take_cell() {
  if (free_cells_.empty()) return -1;
  const int32_t cell = free_cells_.back();
  free_cells_.pop_back();
  return cell;
}

void Step::give_cell(int32_t cell) {
  if (cell >= 0) free_cells_.push_back(cell);  // never more than there were at first
}

void Step::copy_states(int32_t from, int32_t to) {
  for (State& state : states_)
    std::memcpy(state.pages.data() + to * state.cell_bytes, state.pages.data() + from * state.cell_bytes,
                static_cast<size_t>(state.cell_bytes));
}

void Step::clear() {
  for (std::vector<int64_t>* each : {&ids_, &positions_, &kept_}) each->clear();
  starts_.assign(1, 0);
  lengths_.clear();
  hidden_.clear();
  chosen_.clear();
  cells_.clear();
  cross_tables_.clear();
  cross_lengths_.clear();
  for (Group& group : groups_) {
    group.slots.clear();
    group.rows.clear();
  }
}

int64_t Step::add(const Sequence& sequence, int64_t first, Tokens tokens, Drafts drafts, int64_t known, int64_t kept,
                  int32_t adapter, int32_t cell, int32_t place) {
  ids_.insert(ids_.end(), tokens.begin(), tokens.end());
  const int64_t text = first + static_cast<int64_t>(tokens.size());
  for (int64_t position = first; position < text; ++position) positions_.push_back(position);
  hidden_.resize(ids_.size());
  TreeWalk walk;
  for (int64_t i = 0; i < static_cast<int64_t>(drafts.size()); ++i) {
    const Draft& draft = drafts[static_cast<size_t>(i)];
    const TreeWalk::Place at = walk.next(draft);
    if (i < known) continue;
    ids_.push_back(draft.token);
    positions_.push_back(text - 1 + at.depth);
    hidden_.push_back(at.hidden);
  }
  const int64_t begin = tokens.size() > 0 ? first : text + known, end = text + static_cast<int64_t>(drafts.size());
  const int64_t block = block_slots(), gone = sequence.evicted();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Span<const int32_t> table = cache_->table(sequence, static_cast<int64_t>(g));
    for (int64_t place = begin - gone; place < end - gone; ++place)
      groups_[g].slots.push_back(table[static_cast<size_t>(place / block)] * block + place % block);
    groups_[g].rows.push_back(table);
  }
  if (adapters() != nullptr) chosen_.resize(ids_.size(), adapter);
  starts_.push_back(static_cast<int32_t>(ids_.size()));
  lengths_.push_back(static_cast<int32_t>(end - gone));
  if (has_states()) cells_.push_back(cell);
  if (sources_ != nullptr) {
    for (int64_t b = 0; b < sources_->blocks(); ++b)
      cross_tables_.push_back(static_cast<int32_t>(place * sources_->blocks() + b));
    cross_lengths_.push_back(static_cast<int32_t>(sources_->positions(place)));
  }
  const auto row = static_cast<int64_t>(kept_input_ >= 0 ? kept_.size() : ids_.size() - static_cast<size_t>(kept));
  for (int64_t i = this->tokens() - kept; i < this->tokens(); ++i) kept_.push_back(i);
  return row;
}

void Step::set(int64_t input, void* data, const Sizes& sizes) {
  if (input < 0) return;
  inputs_[static_cast<size_t>(input)].data = data;
  sizes_[static_cast<size_t>(input)] = sizes;
}

// A row for each sequence, as long as the longest needs it.
void Step::fill_tables() {
  const int32_t longest = lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
  const auto columns = static_cast<size_t>((longest + block_slots() - 1) / block_slots());
  for (Group& group : groups_) {
    group.tables.resize(columns * lengths_.size());
    for (size_t s = 0; s < lengths_.size(); ++s) {
      const size_t blocks = std::min(columns, group.rows[s].size());
      int32_t* row = group.tables.data() + s * columns;
      std::copy_n(group.rows[s].data(), blocks, row);
      std::fill(row + blocks, row + columns, 0);
    }
    set(group.tables_input, group.tables.data(),
        {static_cast<int64_t>(lengths_.size()), static_cast<int64_t>(columns), 0});
  }
}

dhlo_status Step::call() {
  const dhlo_status status = dhlo_session_run(session_.get(), inputs_.data(), static_cast<int64_t>(inputs_.size()));
  if (status != DHLO_OK) error_ = dhlo_session_error(session_.get());
  return status;
}

dhlo_status Step::repeat() {
  shards_->read({inputs_.data(), inputs_.size()}, {told_sizes_.data(), told_sizes_.size()},
                {told_.data(), told_.size()});
  error_.clear();
  return call();
}

dhlo_status Step::run() {
  const auto count = static_cast<int64_t>(ids_.size()), sequences = static_cast<int64_t>(lengths_.size());
  set(ids_input_, ids_.data(), {1, count, 0});
  set(position_ids_input_, positions_.data(), {1, count, 0});
  set(paging_->positions, positions_.data(), {count, 0, 0});
  set(kept_input_, kept_.data(), {static_cast<int64_t>(kept_.size()), 0, 0});
  set(paging_->hidden, hidden_.data(), {count, 0, 0});
  set(paging_->starts, starts_.data(), {sequences + 1, 0, 0});
  set(paging_->lengths, lengths_.data(), {sequences});
  set(paging_->cells, cells_.data(), {sequences});
  if (sources_ != nullptr) {
    set(paging_->cross_tables, cross_tables_.data(), {sequences, sources_->blocks()});
    set(paging_->cross_lengths, cross_lengths_.data(), {sequences});
  }
  for (Group& group : groups_) set(group.slots_input, group.slots.data(), {count, 0, 0});
  if (adapters() != nullptr) set(adapters()->chosen, chosen_.data(), {count, 0, 0});
  fill_tables();
  error_.clear();
  if (shards_ != nullptr) {
    const std::vector<SlotCopy>& copies = cache_->copies();
    const bool told =
        shards_->tell({copies.data(), copies.size()}, {inputs_.data(), inputs_.size()}, {told_.data(), told_.size()});
    cache_->clear_copies();
    if (!told) {
      error_ = shards_->error();
      return DHLO_HOST;
    }
  }
  dhlo_status status = call();
  if (status != DHLO_OK && shards_ != nullptr) shards_->fail(error_);
  if (status != DHLO_OK) return status;
  dhlo_tensor logits;
  status = dhlo_session_output(session_.get(), 0, &logits);
  const int64_t rows = kept_input_ >= 0 ? static_cast<int64_t>(kept_.size()) : count;
  if (status != DHLO_OK || logits.dtype != dtype_ || logits.sizes[logits.rank - 1] != vocabulary_ ||
      (logits.rank > 1 && logits.sizes[logits.rank - 2] != rows)) {
    error_ = "the step gave no logits of the wanted tokens";
    return DHLO_INTERNAL;
  }
  logits_ = static_cast<const uint8_t*>(logits.data);
  return DHLO_OK;
}

}  // namespace dhlo::serve
