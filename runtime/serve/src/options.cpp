// What an engine is made of: its options, checked, its cache and its thread.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "engine.hpp"
#include "status.hpp"

namespace dhlo::serve {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 20;  // of a step, and of what may wait

// The number in a file of the system's, -1 if there is none.
int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

// Of the machine, or of the control group if that has less; -1 if that isn't known.
int64_t known_free_memory() {
  int64_t free = -1;
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kilobytes = 0; file >> name >> kilobytes && std::getline(file, unit);)
    if (name == "MemAvailable:") free = kilobytes * 1024;
  const int64_t most = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (most >= 0 && used >= 0) free = free < 0 ? most - used : std::min(free, most - used);
  return free;
}

int64_t free_memory(const char* instead) {
  const int64_t free = known_free_memory();
  if (free < 0) refuse(std::string("how much memory is free isn't known: give ") + instead);
  return free;
}

void need_between(int64_t value, int64_t least, int64_t most, const char* name) {
  if (value < least || value > most)
    refuse(std::string(name) + " is from " + std::to_string(least) + " to " + std::to_string(most) + ", got " +
           std::to_string(value));
}

constexpr int64_t kUsualSequences = 128;

// Within a prompt such a part of a sequence's blocks is evicted at once: tokens see most of what may be kept, and steps
// take enough of them at a time.
constexpr int64_t kEvictedParts = 8;

// How many sequences are in work at once: where sources take memory, at most as many as a quarter of what is free has
// room for, if none are given.
int64_t sequences_of(const Step& step, const dhlo_engine_options& options) {
  const int64_t usual = std::min(kUsualSequences, options.max_step_tokens);
  const Sources* sources = step.sources();
  if (sources == nullptr) return options.max_sequences > 0 ? options.max_sequences : usual;
  const int64_t bytes = std::max<int64_t>(sources->place_bytes(), 1);
  if (options.max_sequences == 0) {
    const int64_t fit = std::min(free_memory("max_sequences") / 4 / bytes, sources->most_places());
    return std::clamp<int64_t>(fit, 1, usual);
  }
  if (const int64_t free = known_free_memory(); free >= 0 && bytes > free / options.max_sequences)
    refuse("max_sequences: the sources of " + std::to_string(options.max_sequences) + " take " + std::to_string(bytes) +
           " bytes each, and " + std::to_string(free) + " are free");
  return options.max_sequences;
}

Vocabulary read_vocabulary(const dhlo_engine_options& options) {
  if (options.vocabulary_offsets == nullptr) return {};
  need_between(options.num_vocabulary, 0, kMostTokens * 1024, "num_vocabulary");
  const int64_t* offsets = options.vocabulary_offsets;
  if (offsets[0] != 0) refuse("vocabulary_offsets begin with 0");
  for (int64_t i = 0; i < options.num_vocabulary; ++i)
    if (offsets[i + 1] < offsets[i]) refuse("vocabulary_offsets ascend");
  if (options.vocabulary == nullptr && offsets[options.num_vocabulary] > 0) refuse("vocabulary is null");
  return {options.vocabulary, offsets, options.num_vocabulary};
}

// Blocks that take no memory, by which sequences are counted of which states of fixed size are kept alone.
constexpr int64_t kBlocksOfNothing = int64_t{1} << 20;

EvictionOptions eviction_options(const Step& step, const dhlo_engine_options& options, int64_t num_blocks) {
  const int64_t slots = step.block_slots(), to = options.evict_to;
  need_between(to, 0, INT64_MAX, "evict_to");
  need_between(options.evict_sinks, 0, INT64_MAX, "evict_sinks");
  need_between(options.evict_recent, 0, INT64_MAX, "evict_recent");
  need_between(options.evict_by, DHLO_EVICTION_RECENT, DHLO_EVICTION_NORMS, "evict_by (a dhlo_eviction)");
  EvictionOptions made;
  if (to == 0) return made;
  made = {to / slots, options.evict_sinks, options.evict_recent, options.evict_by == DHLO_EVICTION_NORMS};
  if (step.has_states()) refuse("evict_to: the model keeps states of sequences, which can't go on without tokens");
  if (!step.by_order())
    refuse(
        "evict_to: what tokens of this model see follows from positions (windows, ALiBi, masks), not from order alone");
  if (made.by_norms && !step.has_values())
    refuse("evict_by: the model keeps keys and values in one, whose norms say nothing: evict by what is recent");
  if (to % slots != 0)
    refuse("evict_to is a multiple of a block's tokens, " + std::to_string(slots) + ", got " + std::to_string(to));
  if (made.sinks >= made.blocks || made.recent >= made.blocks - made.sinks)
    refuse("evict_to: beside evict_sinks and evict_recent there is a block that may go, got " + std::to_string(to) +
           " tokens, which are " + std::to_string(made.blocks) + " blocks");
  if (made.blocks > num_blocks)
    refuse("evict_to: the pools have room for " + std::to_string(num_blocks * slots) + " tokens, got " +
           std::to_string(to) + ": give more cache_bytes");
  return made;
}

CacheOptions cache_options(const Step& step, const dhlo_engine_options& options, int64_t processes) {
  const int64_t block = step.block_bytes();
  CacheOptions made = step.cache_options();
  if (block > 0) {
    const int64_t bytes =
        options.cache_bytes > 0 ? options.cache_bytes : std::max(free_memory("cache_bytes") / 4 / processes, block);
    if (bytes < block)
      refuse("cache_bytes are those of a block at least, " + std::to_string(block) + ", got " + std::to_string(bytes));
    made.num_blocks = std::min<int64_t>(bytes / block, INT32_MAX / step.block_slots());
  } else {
    made.num_blocks = kBlocksOfNothing;
  }
  made.prefix = options.prefix_cache != 0 && !step.has_states();  // states at the ends of blocks aren't kept
  if (options.cache_folder != nullptr) {
    made.tiers.folder = options.cache_folder;
    made.tiers.folder_bytes = options.cache_folder_bytes;
  }
  if (options.cache_store != nullptr) made.tiers.store = *options.cache_store;
  made.tiers.flush_ns = 0;  // the engine flushes as it is closed
  made.eviction = eviction_options(step, options, made.num_blocks);
  if (options.model_digest != nullptr) std::memcpy(made.seed.data(), options.model_digest, made.seed.size());
  return made;
}

}  // namespace

// What memory holds of other processes, they do themselves, told by this one: what only this one would do is refused.
void Engine::open_shards(const dhlo_engine_options& options) {
  const std::pair<bool, const char*> refused[] = {
      {options.cache_folder != nullptr, "cache_folder: blocks that leave the pools"},
      {options.cache_store != nullptr, "cache_store: blocks that leave the pools"},
      {options.preemption == DHLO_PREEMPTION_SWAP, "preemption: what is swapped"},
      {step_.has_states(), "the model keeps states of sequences, which"},
      {step_.adapters() != nullptr, "the step was compiled with room for adapters, which"},
      {step_.sources() != nullptr, "encoder: what it computes"}};
  for (const auto& [wrong, what] : refused)
    if (wrong) refuse(std::string(what) + " would be of one process alone: not with a communicator");
  need_between(options.peer_timeout_ns, 0, INT64_MAX, "peer_timeout_ns");
  shards_ = std::make_unique<Shards>(*options.communicator, peer_timeout(options.peer_timeout_ns));
  step_.open(shards_.get());
  shards_->join(true);
}

Engine::Engine(dhlo_model* model, const dhlo_engine_options& options)
    : process_(getpid()),
      own_thread_(options.own_thread != 0),
      vocabulary_(read_vocabulary(options)),
      constrain_(options.constrain),
      constrain_ctx_(options.constrain_ctx),
      on_event_(options.on_event),
      event_ctx_(options.event_ctx),
      step_(model),
      adapters_(step_) {
  need_between(options.max_step_tokens, 1, kMostTokens, "max_step_tokens");
  need_between(options.max_sequences, 0, options.max_step_tokens, "max_sequences (at most max_step_tokens)");
  need_between(options.max_waiting, 1, INT64_MAX, "max_waiting");
  need_between(options.max_positions, 0, INT64_MAX, "max_positions");
  need_between(options.prompt_lookup, 0, options.max_step_tokens, "prompt_lookup (at most max_step_tokens)");
  need_between(options.preemption, DHLO_PREEMPTION_RECOMPUTE, DHLO_PREEMPTION_SWAP, "preemption (a dhlo_preemption)");
  need_between(options.swap_bytes, 0, INT64_MAX, "swap_bytes");
  need_between(options.draft_tokens, 0, options.draft_model != nullptr ? options.max_step_tokens : INT64_MAX,
               "draft_tokens (at most max_step_tokens)");
  need_between(options.draft_branches, 1, kMostTree, "draft_branches");
  need_between(options.draft_cache_bytes, 0, INT64_MAX, "draft_cache_bytes");
  need_between(options.draft_max_positions, 0, INT64_MAX, "draft_max_positions");
  need_between(options.cache_bytes, 0, INT64_MAX, "cache_bytes");
  need_between(options.cache_folder_bytes, 0, INT64_MAX, "cache_folder_bytes");
  need_between(options.num_eos_tokens, 0, step_.vocabulary(), "num_eos_tokens");
  if (options.eos_tokens == nullptr && options.num_eos_tokens > 0) refuse("eos_tokens is null");
  if (options.cache_folder != nullptr && *options.cache_folder == '\0') refuse("cache_folder is empty");
  if (options.cache_folder != nullptr && options.model_digest == nullptr)
    refuse("cache_folder needs model_digest: blocks in a folder are of one model alone");
  if (options.cache_store != nullptr && (options.cache_store->put == nullptr || options.cache_store->get == nullptr))
    refuse("cache_store: put and get are needed");
  if (options.cache_store != nullptr && options.model_digest == nullptr)
    refuse("cache_store needs model_digest: blocks in a store are of one model alone");
  eos_tokens_.assign(options.eos_tokens, options.eos_tokens + options.num_eos_tokens);
  for (const int32_t token : eos_tokens_) need_between(token, 0, step_.vocabulary() - 1, "eos_tokens: a token");
  max_step_tokens_ = options.max_step_tokens;
  max_waiting_ = options.max_waiting;
  prompt_lookup_ = options.prompt_lookup;

  if (step_.has_states() && (prompt_lookup_ > 0 || options.draft_model != nullptr))
    refuse(std::string(prompt_lookup_ > 0 ? "prompt_lookup" : "draft_model") +
           ": the model keeps states of sequences, which can't go back behind drafts");
  if (step_.has_states() && (options.cache_folder != nullptr || options.cache_store != nullptr))
    refuse(std::string(options.cache_folder != nullptr ? "cache_folder" : "cache_store") +
           ": the model keeps states of sequences, which no blocks have: give none for such");
  need_between(options.max_source_positions, 0, INT32_MAX / 2, "max_source_positions");
  if (step_.is_cross() && step_.adapters() != nullptr)
    refuse("the step has cross attention and room for adapters, of which what the encoder gives knows nothing");
  step_.take_encoder(options.encoder, options.max_source_positions);
  const int64_t sequences = sequences_of(step_, options);
  if (options.communicator != nullptr) open_shards(options);
  const CacheOptions how = cache_options(step_, options, shards_ != nullptr ? shards_->size() : 1);
  auto made = Cache::create(how);
  if (!made.ok()) throw Error(made.status(), made.text());
  cache_ = std::move(made.value());
  if (options.cache_folder != nullptr || options.cache_store != nullptr) fetched_bytes_ = how.tiers.staging_bytes;
  if (options.preemption == DHLO_PREEMPTION_SWAP)
    swap_bytes_ = options.swap_bytes > 0 ? options.swap_bytes : how.num_blocks * step_.block_bytes();
  groups_ = static_cast<int64_t>(how.windows.size());
  const auto whole = std::find(how.windows.begin(), how.windows.end(), 0);
  whole_ = whole != how.windows.end() ? whole - how.windows.begin() : 0;
  populator_.start(step_.pool_memory(*cache_), groups_, how.num_blocks);
  limits_.vocabulary = step_.vocabulary();
  limits_.max_sequences = sequences;
  limits_.constrains = constrain_ != nullptr;
  limits_.blocks = how.num_blocks;
  limits_.block_slots = how.block_slots;
  limits_.max_positions = how.num_blocks * how.block_slots;
  if (how.eviction.blocks > 0) {
    evict_to_ = options.evict_to;
    limits_.evicts = true;
    const int64_t may_go = how.eviction.blocks - how.eviction.sinks - how.eviction.recent;
    evicted_at_once_ = std::clamp<int64_t>(how.eviction.blocks / kEvictedParts, 1, may_go);
    limits_.max_positions = INT32_MAX;  // no longer bounded by the pools
  }
  for (const int64_t most : {options.max_positions, step_.max_positions()})
    if (most > 0) limits_.max_positions = std::min(limits_.max_positions, most);
  if (limits_.max_positions < 2) refuse("max_positions: a prompt and a token need 2 at least");
  sampler_ = std::make_unique<Sampler>(step_.vocabulary(), step_.dtype());
  allowed_.resize(static_cast<size_t>((step_.vocabulary() + 31) / 32));
  step_.attach(*cache_, max_step_tokens_, sequences);
  if (shards_ != nullptr) {
    cache_->note_copies();
    shards_->plan({how.num_blocks, max_step_tokens_, sequences}, step_.kind());
    if (!shards_->agree(true))
      throw Error(DHLO_HOST, "another process can't follow this engine: its own error says why");
  }
  if (step_.adapters() != nullptr) step_.set_adapters(adapters_.weights());
  if (options.draft_model != nullptr && options.draft_tokens > 0) {
    DrafterOptions drafts;
    drafts.cache_bytes = options.draft_cache_bytes;
    drafts.max_positions = options.draft_max_positions;
    drafts.max_step_tokens = max_step_tokens_;
    drafts.max_sequences = sequences;
    drafts.max_branches = options.draft_branches;
    drafts.prefix = options.prefix_cache != 0;
    drafts.target_blocks = how.num_blocks;
    drafter_ = std::make_unique<Drafter>(options.draft_model, step_, drafts);
    draft_tokens_ = options.draft_tokens;
  }
  const auto most = static_cast<size_t>(sequences);
  running_.reserve(most);
  items_.reserve(most);
  order_.reserve(most);
  done_.reserve(most);
  drafts_.reserve(static_cast<size_t>(std::max(prompt_lookup_, draft_tokens_)) * most);
  wanted_.reserve(most);
  if (own_thread_) thread_ = std::thread([this] { run(); });
}

}  // namespace dhlo::serve
