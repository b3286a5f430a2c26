// Continuous batching: requests come at any time, and each step takes what it can of all that are in work.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "adapters.hpp"
#include "cache.hpp"
#include "dhlo/serve.h"
#include "draft_length.hpp"
#include "drafter.hpp"
#include "events.hpp"
#include "populate.hpp"
#include "request.hpp"
#include "sampler.hpp"
#include "shards.hpp"
#include "step.hpp"
#include "step_cost.hpp"
#include "stops.hpp"

namespace dhlo::serve {

class Engine {
 public:
  // Throws Error.
  Engine(dhlo_model* model, const dhlo_engine_options& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() { shut(); }

  // From any thread; throw Error, also in the child of a fork.
  uint64_t submit(const int32_t* prompt, int64_t num_tokens, const dhlo_sampling& how);
  void cancel(uint64_t request);
  // False when the time is over; throws Error with DHLO_CANCELLED when there will be none any more.
  bool poll(int64_t timeout_ns, const dhlo_event* const** events, int64_t* count);
  bool step();
  // Whether all requests have ended.
  bool drain(int64_t timeout_ns);
  // Throws Error if a hook calls it. Does nothing in the child of a fork.
  void close();
  // Throws Error where it can run no requests any more.
  void check_health() const;
  // False in the child of a fork, which lacks the engine's thread, and for hooks, which that thread runs.
  bool may_destroy() const noexcept;
  dhlo_engine_stats stats() const;
  void load_adapter(const char* name, const dhlo_lora_pair* pairs, int64_t count);
  void unload_adapter(const char* name);

 private:
  void open_shards(const dhlo_engine_options& options);
  void need_this_process() const;
  void need_no_hook(const char* what) const;
  void shut() noexcept;

  // What a step computes of a choice: its tokens [first, end), and then drafts.
  struct Item {
    Choice* choice;
    int64_t first, end;
    int64_t drafts_at, drafts;
    int64_t row;    // of the first logits; -1: a part of a prompt without its end
    bool by_model;  // the drafts are, or are to be, those of the draft model
    size_t kind;    // of the lookup's
    double cost;    // of the drafts, expected: a part of the step without them
    int64_t accepted;
    DraftJob* job;  // what the draft model was asked for; null: nothing
  };
  struct DraftPlan {
    int64_t length = 0;
    double speed = 1, cost = 0;
    size_t kind = 0;
    bool by_model = false;
  };
  using Waiting = std::set<Choice*, Sooner>;

  // engine.cpp: the thread, and what a step is made of.
  void run() noexcept;
  bool work() noexcept;
  bool can_tell() noexcept;
  void encode();
  void make_drafts();
  void order_items();
  void compute();
  void fail_step();
  void take_results();
  void publish() noexcept;
  void note_cache(dhlo_engine_stats& stats) const;

  // tokens.cpp: what becomes of logits.
  void take_rows(Item& item);
  int32_t follower(const Item& item, int32_t draft, int32_t token) const;
  void note_drafts(Item& item);
  void settle_drafts(int64_t ns, bool prompts);
  void fork(Request& request, const void* row);
  bool extend(Choice& choice, const void* row);
  bool draw(Choice& choice, const void* row);
  void note_logprobs(Choice& choice);
  void give(Choice& choice);

  // beams.cpp: beam search.
  void take_beam(const Item& item);
  void advance(Request& request);
  void keep_ended(Request& request, int64_t made);
  void go_on(Request& request);
  bool weigh_beams(Request& request);
  void join(Choice& choice, Sequence sequence, const Choice& from);
  void spread(Request& request);
  // The caller holds mutex_.
  void schedule_beams(Request& request);
  void preempt_beams(Request& request);
  void end_beams(Request& request, dhlo_finish finish, const char* error, Events& events) noexcept;

  // tokens.cpp; the caller holds mutex_.
  void release(Choice& choice) noexcept;
  void end(Choice& choice, dhlo_finish finish, const char* error, Events& events) noexcept;
  void end(Request& request, dhlo_finish finish, const char* error, Events& events) noexcept;
  void end_all(dhlo_finish finish, const char* error) noexcept;

  // scheduler.cpp; the caller holds mutex_.
  void expire(int64_t now);
  void schedule();
  void schedule_decodes();
  void schedule_prompts();
  Choice* next_prompt() const;
  void look_up_arrived();
  DraftPlan plan_drafts(Choice& choice, int64_t slack);
  DraftPlan plan_lookup(Choice& choice, int64_t most, PromptLookup::Match match);
  DraftPlan plan_model(Choice& choice, int64_t most);
  void add_item(Choice& choice, int64_t tokens, int64_t drafts_at, const DraftPlan& drafts);
  void drop_item(Choice& choice);
  bool admit(Choice& choice);
  void fetch(Choice& choice);
  void fetch_ahead();
  bool waits_for_tiers(Choice& choice);
  bool make_room(Choice& choice, int64_t tokens);
  int64_t evict(Choice& choice);
  int64_t most_blocks(int64_t tokens) const;
  bool yield_to(const Choice& choice);
  void preempt(Choice& choice);
  bool encodes() const;
  void leave(Request& request) noexcept;
  bool swap_out(Choice& choice);
  void insert_running(Choice& choice);
  void remove(Choice& choice);
  int64_t in_work() const;
  int64_t free_blocks() const;

  // What doesn't change.
  const pid_t process_;
  Limits limits_;
  int64_t max_step_tokens_, max_waiting_, prompt_lookup_, draft_tokens_ = 0;
  int64_t swap_bytes_ = 0;                              // that preempted choices may take; 0: they are computed again
  int64_t evict_to_ = INT64_MAX, evicted_at_once_ = 1;  // tokens; blocks within a prompt
  int64_t groups_ = 1;
  int64_t whole_ = 0;  // a group without a window, if there is one
  bool own_thread_;
  std::vector<int32_t> eos_tokens_;
  Vocabulary vocabulary_;
  dhlo_constrain_fn constrain_;
  void* constrain_ctx_;
  dhlo_event_fn on_event_;
  void* event_ctx_;

  // Of the thread that runs steps.
  std::unique_ptr<Shards> shards_;  // null: one process
  Step step_;
  Adapters adapters_;  // of any thread
  std::unique_ptr<Cache> cache_;
  Populator populator_;
  std::unique_ptr<Drafter> drafter_;  // null: none
  std::vector<DraftJob> wanted_;      // of it, in the step in work
  std::array<DraftRates, PromptLookup::kKinds> lookup_rates_;
  DraftRates model_rates_;
  DraftAccount lookup_account_, model_account_;
  std::unique_ptr<Sampler> sampler_;
  std::vector<Choice*> running_;  // that hold blocks, in order
  std::vector<Item> items_;       // of the step in work
  std::vector<Item*> order_;      // in which it has them
  std::vector<Draft> drafts_;
  std::vector<int32_t> path_;  // of an item's drafts, those that were right
  std::vector<uint32_t> allowed_;
  std::vector<Choice*> done_;  // that have come to their ends in the step
  int64_t fetched_bytes_ = 0;  // of blocks that the tiers may have brought before they are taken; 0: there are none
  int64_t late_fetch_ = 0;     // the last that took too long
  int64_t fetching_ = 0;       // there is nothing to compute before this fetch has brought what it brings
  int64_t budget_ = 0;         // tokens that the step has room for
  int64_t decoding_ = 0;       // choices that decode in it
  StepCost cost_;
  Choice* blocked_ = nullptr;  // who waits first, and found too little room
  int64_t blocked_free_ = 0;   // with so many free blocks
  Events made_, delivered_;
  dhlo_engine_stats counts_{};
  std::mutex step_mutex_;  // held by whoever runs a step
  std::atomic<std::thread::id> worker_{};

  mutable std::mutex mutex_;  // guards what follows; taken after the others
  std::condition_variable work_, changed_;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<uint64_t> ended_;  // those whose choices have all ended; has room for all
  int64_t live_ = 0;             // choices that haven't ended
  Waiting waiting_;              // choices without blocks, but for those that a request's first makes
  int64_t unbegun_ = 0;          // requests among these that haven't begun
  int64_t next_deadline_ = INT64_MAX;
  bool sweep_ = false;  // a request that has begun was cancelled
  bool draining_ = false, closing_ = false, closed_ = false;
  std::string failure_;  // of the processes that run steps together; empty: none
  uint64_t last_id_ = 0, last_looked_up_ = 0;
  int64_t tokens_scheduled_ = 0;  // of all steps
  Events outbox_;
  std::array<int64_t, DHLO_FINISH_ERROR + 1> finished_{};
  dhlo_engine_stats stats_{};

  std::mutex poll_mutex_;
  Events polled_;
  std::mutex close_mutex_;
  std::thread thread_;
};

}  // namespace dhlo::serve
