// Continuous batching: the engine's thread, its steps, and what others ask of it.
#include "engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "status.hpp"

namespace dhlo::serve {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// Waits until `done()`, at most until that time of the steady clock; INT64_MAX: without end. The C++ library's own wait
// without a limit lacks on older systems.
template <class Done>
bool wait_until(std::condition_variable& signal, std::unique_lock<std::mutex>& lock, int64_t end, Done done) {
  constexpr int64_t kDay = int64_t{24} * 3600 * 1000000000;
  while (!done()) {
    const int64_t now = now_ns();
    if (now >= end) return false;
    signal.wait_for(lock, std::chrono::nanoseconds(std::min(end - now, kDay)));
  }
  return true;
}

// So long the cache writes what it keeps to its tiers, as the engine is closed.
constexpr int64_t kFlushNs = 5000000000;
// Where all wait for the folder: how long until it is looked for new requests and cancelled ones.
constexpr std::chrono::milliseconds kFetchWait{2};

// The time so long from now; INT64_MAX below 0 or if there is none.
int64_t end_of(int64_t timeout_ns) {
  int64_t end = INT64_MAX;
  if (timeout_ns < 0 || __builtin_add_overflow(now_ns(), timeout_ns, &end)) return INT64_MAX;
  return end;
}

}  // namespace

void Engine::need_this_process() const {
  if (process_ != getpid()) refuse("the engine belongs to the process that forked this one: create another one");
}

void Engine::need_no_hook(const char* what) const {
  if (worker_.load() == std::this_thread::get_id()) refuse(std::string(what) + ": must not be called by a hook");
}

bool Engine::may_destroy() const noexcept {
  return process_ == getpid() && worker_.load() != std::this_thread::get_id();
}

uint64_t Engine::submit(const int32_t* prompt, int64_t num_tokens, const dhlo_sampling& how) {
  need_this_process();
  auto request = std::make_unique<Request>(prompt, num_tokens, how, limits_, vocabulary_, eos_tokens_);
  if (how.adapter != nullptr) request->choose(adapters_.take(how.adapter));
  if (const Sources* sources = step_.sources(); sources != nullptr)
    request->attend_to(sources->read(how.input_names, how.inputs, how.num_inputs));
  else if (how.num_inputs != 0)
    refuse("inputs: the engine has no encoder, which would take them");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (draining_ || closing_) throw Error(DHLO_BUSY, "the engine takes no more requests");
  if (unbegun_ >= max_waiting_)
    throw Error(DHLO_BUSY, "the engine has " + std::to_string(unbegun_) + " requests waiting, as many as it may");
  request->id = last_id_ + 1;
  request->came = tokens_scheduled_;
  outbox_.reserve(request->choices.size());
  ended_.reserve(requests_.size() + 1);
  Choice* const first = &request->choices.front();
  waiting_.insert(first);
  try {
    requests_.emplace(request->id, nullptr);
  } catch (...) {
    waiting_.erase(first);
    throw;
  }
  next_deadline_ = std::min(next_deadline_, request->deadline_ns != 0 ? request->deadline_ns : INT64_MAX);
  live_ += request->live;
  ++unbegun_;
  ++stats_.waiting;
  ++last_id_;
  requests_[last_id_] = std::move(request);
  work_.notify_one();
  return last_id_;
}

void Engine::cancel(uint64_t id) {
  need_this_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  outbox_.reserve(request.choices.size());
  request.cancelled = true;
  sweep_ = true;
  if (!request.begun && request.live > 0) {
    end(request, DHLO_FINISH_CANCELLED, "", outbox_);
    std::copy(finished_.begin(), finished_.end(), stats_.finished);
    --stats_.waiting;
    changed_.notify_all();
  }
  work_.notify_one();
}

bool Engine::poll(int64_t timeout_ns, const dhlo_event* const** events, int64_t* count) {
  need_this_process();
  need_no_hook("dhlo_engine_poll");
  if (on_event_ != nullptr) refuse("dhlo_engine_poll: the engine gives its events to on_event");
  const int64_t end = end_of(timeout_ns);
  const std::lock_guard<std::mutex> one_at_a_time(poll_mutex_);
  polled_.clear();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_until(changed_, lock, end, [this] { return !outbox_.empty() || closed_; });
    if (outbox_.empty() && closed_) throw Error(DHLO_CANCELLED, "the engine is closed");
    polled_.take(outbox_);
  }
  const std::vector<const dhlo_event*>& pointers = polled_.pointers();
  *events = pointers.data();
  *count = static_cast<int64_t>(pointers.size());
  return !pointers.empty();
}

bool Engine::step() {
  need_this_process();
  need_no_hook("dhlo_engine_step");
  if (own_thread_) refuse("dhlo_engine_step: the engine has a thread of its own");
  const std::unique_lock<std::mutex> stepping(step_mutex_, std::try_to_lock);
  if (!stepping.owns_lock()) throw Error(DHLO_BUSY, "dhlo_engine_step: another thread runs a step");
  return work();
}

bool Engine::drain(int64_t timeout_ns) {
  need_this_process();
  need_no_hook("dhlo_engine_drain");
  const int64_t end = end_of(timeout_ns);
  std::unique_lock<std::mutex> lock(mutex_);
  draining_ = true;
  if (own_thread_) return wait_until(changed_, lock, end, [this] { return requests_.empty(); });
  while (!requests_.empty()) {
    if (now_ns() >= end) return false;
    lock.unlock();
    {
      const std::lock_guard<std::mutex> stepping(step_mutex_);
      work();
    }
    lock.lock();
  }
  return true;
}

void Engine::close() {
  if (process_ != getpid()) return;
  need_no_hook("dhlo_engine_close");
  shut();
}

void Engine::shut() noexcept {
  const std::lock_guard<std::mutex> once(close_mutex_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closing_ = true;
    work_.notify_one();
  }
  // Other processes would wait for this one, in the midst of a step: it is done.
  if (shards_ == nullptr) step_.cancel();
  if (step_.sources() != nullptr) step_.sources()->cancel();
  if (drafter_ != nullptr) drafter_->cancel();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    const std::lock_guard<std::mutex> stepping(step_mutex_);
    work();
  }
  const std::lock_guard<std::mutex> stepping(step_mutex_);
  if (shards_ != nullptr) shards_->end();
  cache_->flush(kFlushNs);
  cache_->end_tiers();
  const std::lock_guard<std::mutex> lock(mutex_);
  note_cache(stats_);
  closed_ = true;
  changed_.notify_all();
}

void Engine::check_health() const {
  need_this_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) throw Error(DHLO_CANCELLED, "the engine is closed");
  if (!failure_.empty()) throw Error(DHLO_HOST, failure_);
}

dhlo_engine_stats Engine::stats() const {
  need_this_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void Engine::load_adapter(const char* name, const dhlo_lora_pair* pairs, int64_t count) {
  need_this_process();
  adapters_.load(name, pairs, count);
}

void Engine::unload_adapter(const char* name) {
  need_this_process();
  adapters_.unload(name);
}

// ---- the engine's thread --------------------------------------------------------------------------------------------

void Engine::run() noexcept {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wait_until(work_, lock, shards_ != nullptr ? shards_->next_ns() : INT64_MAX, [this] {
        return closing_ || !requests_.empty() || !made_.empty() || (on_event_ != nullptr && !outbox_.empty());
      });
    }
    work();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_ && requests_.empty()) return;
  }
}

// Makes room to tell what a step brings: tokens and the end of each choice. So ending them can't fail.
bool Engine::can_tell() noexcept try {
  const std::lock_guard<std::mutex> lock(mutex_);
  made_.reserve(static_cast<size_t>(2 * live_));
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// A step, if there is something to do, or some waiting for what the folder brings. Whether there was.
bool Engine::work() noexcept {
  const int64_t begin = now_ns(), step_before = counts_.step_ns + counts_.draft_ns + counts_.encoder_ns;
  bool worked = false;
  fetching_ = 0;
  if (!can_tell()) return true;  // when there is memory again
  worker_ = std::this_thread::get_id();
  try {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (closing_) end_all(DHLO_FINISH_CANCELLED, "");
      expire(begin);
      worked = !requests_.empty();
      if (worked && (!running_.empty() || !waiting_.empty())) schedule();
    }
    for (int64_t group = 0; group < groups_; ++group) populator_.reached(group, cache_->opened(group));
    counts_.schedule_ns += now_ns() - begin;
    if (!items_.empty()) compute();
  } catch (const std::bad_alloc&) {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_all(DHLO_FINISH_ERROR, "out of memory");
  } catch (const std::exception& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_all(DHLO_FINISH_ERROR, error.what());
  }
  items_.clear();
  if (shards_ != nullptr) shards_->keep_alive();
  if (worked)
    counts_.host_ns += now_ns() - begin - (counts_.step_ns + counts_.draft_ns + counts_.encoder_ns - step_before);
  publish();
  if (fetching_ != 0) cache_->wait_prefetched(fetching_, kFetchWait);
  worker_ = std::thread::id();
  return worked;
}

// What requests that begin in the step are about. One that can't be computed ends with it alone. Nothing is left of the
// step where the engine was closed meanwhile: its cancelling has reached the encoder, and not the step.
void Engine::encode() {
  const auto next = [this] {
    return std::find_if(items_.begin(), items_.end(), [](const Item& item) {
      const Request& request = *item.choice->request;
      return request.source != nullptr && !request.encoded;
    });
  };
  bool encoded = false;
  const auto left = [this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) items_.clear();  // the next turn ends their requests
    return closing_;
  };
  for (auto item = next(); item != items_.end(); item = next()) {
    if (left()) return;
    encoded = true;
    Request& request = *item->choice->request;
    const int64_t begin = now_ns();
    request.encoded = step_.sources()->encode(*request.source, request.place) == DHLO_OK;
    counts_.encoder_ns += now_ns() - begin;
    ++counts_.encoded;
    if (request.encoded) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string text = std::string("the encoder failed: ") + step_.sources()->error();
    items_.erase(std::remove_if(items_.begin(), items_.end(),
                                [&request](const Item& each) { return each.choice->request == &request; }),
                 items_.end());
    end(request, closing_ ? DHLO_FINISH_CANCELLED : DHLO_FINISH_ERROR, closing_ ? "" : text.c_str(), made_);
  }
  if (encoded) left();
}

// Lets the draft model say what it was scheduled for.
void Engine::make_drafts() {
  wanted_.clear();
  for (const Item& item : items_)
    if (item.by_model) wanted_.emplace_back(item.choice, item.drafts, drafts_.data() + item.drafts_at);
  if (wanted_.empty()) return;
  const int64_t begin = now_ns();
  drafter_->draft(wanted_, {cost_, decoding_, model_account_.times()});
  auto job = wanted_.begin();
  for (Item& item : items_) {
    if (!item.by_model) continue;
    item.job = &*job++;
    item.drafts = static_cast<int64_t>(item.job->growth.size());
  }
  counts_.draft_ns += now_ns() - begin;
  counts_.draft_steps = drafter_->steps();
  counts_.draft_failures = drafter_->failures();
}

// Sequences that begin with the same blocks are put side by side, so that attention reads these once; parts of prompts,
// which it doesn't take together, behind the others.
void Engine::order_items() {
  order_.clear();
  for (Item& item : items_) order_.push_back(&item);
  std::sort(order_.begin(), order_.end(), [this](const Item* x, const Item* y) {
    const bool part = x->end - x->first > 1;
    if (part != (y->end - y->first > 1)) return !part;
    const Tokens a = cache_->table(*x->choice->sequence, whole_), b = cache_->table(*y->choice->sequence, whole_);
    const auto [p, q] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    if (p == a.end() || q == b.end()) return a.size() != b.size() ? a.size() < b.size() : x < y;
    return *p < *q;
  });
}

// Runs the step that is scheduled. Not under the lock: requests come and are cancelled meanwhile.
void Engine::compute() {
  encode();
  if (items_.empty()) return;
  const int64_t drafting = now_ns();
  make_drafts();
  const int64_t begin = now_ns();
  step_.clear();
  order_items();
  for (Item* each : order_) {
    Item& item = *each;
    const Choice& choice = *item.choice;
    const int64_t kept = item.end == choice.size() ? 1 + item.drafts : 0;
    const Tokens tokens{choice.tokens.data() + item.first, static_cast<size_t>(item.end - item.first)};
    const Drafts drafts{drafts_.data() + item.drafts_at, static_cast<size_t>(item.drafts)};
    const int64_t row = step_.add(*choice.sequence, item.first, tokens, drafts, 0, kept,
                                  choice.request->adapter.number(), choice.cell, choice.request->place);
    if (kept > 0) item.row = row;
  }
  const int64_t ready = now_ns();
  counts_.schedule_ns += ready - begin;
  const dhlo_status status = step_.run();
  const int64_t took = now_ns() - ready;
  counts_.step_ns += took;
  if (status != DHLO_OK) return fail_step();
  ++counts_.steps;
  bool prompts = false;
  for (const Item& item : items_) prompts |= item.end - item.first > 1;
  take_results();
  settle_drafts(now_ns() - ready + begin - drafting, prompts);
  if (!prompts) cost_.learn(step_.tokens(), now_ns() - ready);  // sampling is of it
}

// All that the step was made of ends with it, and no other.
void Engine::fail_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string text = std::string("the step failed: ") + step_.error();
  for (const Item& item : items_)
    end(*item.choice->request, closing_ ? DHLO_FINISH_CANCELLED : DHLO_FINISH_ERROR, closing_ ? "" : text.c_str(),
        made_);
}

// Tokens from logits; then blocks become known to the cache, and choices end.
void Engine::take_results() {
  done_.clear();
  for (Item& item : items_) {
    Choice& choice = *item.choice;
    const bool begins = !choice.request->forked && item.row >= 0;
    if (item.end - item.first > 1 || begins) counts_.prompt_tokens += item.end - item.first;
    choice.computed = item.end;
    const bool beam = choice.request->search != nullptr;
    if (item.row >= 0 && !beam) take_rows(item);
    const int64_t begin = now_ns();
    if (item.drafts > 0 || item.by_model) cache_->truncate(*choice.sequence, choice.computed);
    cache_->commit(*choice.sequence, {choice.tokens.data(), static_cast<size_t>(choice.computed)});
    counts_.schedule_ns += now_ns() - begin;
    if (beam)
      take_beam(item);
    else if (begins)
      fork(*choice.request, step_.logits(item.row));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Choice* choice : done_) {
    if (choice->request->search != nullptr)
      end(*choice->request, choice->finish, choice->error, made_);
    else
      end(*choice, choice->finish, choice->error, made_);
  }
}

// Tells of what the step brought.
void Engine::publish() noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    outbox_.take(made_);
    for (const uint64_t id : ended_) requests_.erase(id);
    ended_.clear();
    stats_ = counts_;
    stats_.running = static_cast<int64_t>(running_.size());
    stats_.waiting = static_cast<int64_t>(waiting_.size());
    std::copy(finished_.begin(), finished_.end(), stats_.finished);
    note_cache(stats_);
    if (shards_ != nullptr && failure_.empty()) failure_ = shards_->error();
    changed_.notify_all();
    if (on_event_ != nullptr) delivered_.take(outbox_);
  } catch (const std::bad_alloc&) {
    return;  // they are told of with those of the next step
  }
  if (delivered_.empty()) return;
  fenced(
      [this] {
        const std::vector<const dhlo_event*>& events = delivered_.pointers();
        on_event_(event_ctx_, events.data(), static_cast<int64_t>(events.size()));
        return true;
      },
      false);
  delivered_.clear();
}

// Of the group with most blocks in use.
void Engine::note_cache(dhlo_engine_stats& stats) const {
  const CacheStats cache = cache_->stats();
  stats.blocks = cache.blocks;
  stats.blocks_used = cache.used;
  stats.blocks_cached = cache.kept;
  stats.unused_slots = cache.unused_slots;
  stats.swapped_bytes = cache.swapped_bytes;
  stats.evicted_blocks = cache.evicted_blocks;
  stats.folder = {cache.folder.bytes, cache.folder.blocks, cache.folder.hits, cache.folder.failures,
                  cache.folder.dropped};
  stats.store = {cache.store.bytes, cache.store.blocks, cache.store.hits, cache.store.failures, cache.store.dropped};
}

}  // namespace dhlo::serve
