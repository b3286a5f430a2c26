// C++17 wrapper of serve.h: a handle and exceptions, header only.
#ifndef DHLO_SERVE_HPP
#define DHLO_SERVE_HPP

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "dhlo/runtime.hpp"
#include "dhlo/serve.h"

namespace dhlo {

// Owns an engine. Failures are thrown as RuntimeError. Thread-safe like dhlo_engine, but for moves and the destructor.
class Engine {
 public:
  // Events of a step, valid until the next call of poll.
  class Events {
   public:
    Events(const dhlo_event* const* events, int64_t count) : events_(events), count_(count) {}
    const dhlo_event* const* begin() const noexcept { return events_; }
    const dhlo_event* const* end() const noexcept { return events_ + count_; }
    int64_t size() const noexcept { return count_; }

   private:
    const dhlo_event* const* events_;
    int64_t count_;
  };

  explicit Engine(const Model& model, const dhlo_engine_options* options = nullptr) {
    check(dhlo_engine_create(model.get(), options, &engine_));
  }
  Engine(Engine&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  Engine& operator=(Engine&& other) noexcept {
    std::swap(engine_, other.engine_);
    return *this;
  }
  ~Engine() { dhlo_engine_destroy(engine_); }

  dhlo_engine* get() const noexcept { return engine_; }
  // The request's number.
  uint64_t submit(const std::vector<int32_t>& prompt, const dhlo_sampling* sampling = nullptr) {
    uint64_t request = 0;
    check(dhlo_engine_submit(engine_, prompt.data(), static_cast<int64_t>(prompt.size()), sampling, &request));
    return request;
  }
  void cancel(uint64_t request) { check(dhlo_engine_cancel(engine_, request)); }
  // None when the time is over; throws with DHLO_CANCELLED when the engine is closed and all have been fetched.
  Events poll(std::chrono::nanoseconds timeout) {
    const dhlo_event* const* events = nullptr;
    int64_t count = 0;
    check(dhlo_engine_poll(engine_, timeout.count(), &events, &count));
    return Events(events, count);
  }
  // Of an engine without a thread; whether there was something to do.
  bool step() {
    int32_t worked = 0;
    check(dhlo_engine_step(engine_, &worked));
    return worked != 0;
  }
  // Whether all requests have ended in time.
  bool drain(std::chrono::nanoseconds timeout) {
    const dhlo_status status = dhlo_engine_drain(engine_, timeout.count());
    if (status != DHLO_DEADLINE) check(status);
    return status == DHLO_OK;
  }
  // Pairs begin as dhlo_lora_pair_init leaves them.
  void load_adapter(const char* name, const std::vector<dhlo_lora_pair>& pairs) {
    check(dhlo_engine_load_adapter(engine_, name, pairs.data(), static_cast<int64_t>(pairs.size())));
  }
  void unload_adapter(const char* name) { check(dhlo_engine_unload_adapter(engine_, name)); }
  // Throws where it can run no requests any more.
  void check_health() const { check(dhlo_engine_check_health(engine_)); }
  void close() { check(dhlo_engine_close(engine_)); }
  dhlo_engine_stats stats() const {
    dhlo_engine_stats stats{};
    stats.struct_bytes = sizeof stats;
    check(dhlo_engine_get_stats(engine_, &stats));
    return stats;
  }

 private:
  static void check(dhlo_status status) {
    if (status != DHLO_OK) throw RuntimeError(status, dhlo_serve_last_error());
  }

  dhlo_engine* engine_ = nullptr;
};

// Runs the steps of another process's engine, of which the options have the communicator, until that is closed.
inline void follow(const Model& model, const dhlo_engine_options& options) {
  const dhlo_status status = dhlo_engine_follow(model.get(), &options);
  if (status != DHLO_OK) throw RuntimeError(status, dhlo_serve_last_error());
}

}  // namespace dhlo

#endif
