// What models and sessions of one environment share: threads, memory limit, hooks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dhlo/runtime.h"
#include "memory.hpp"
#include "pool.hpp"
#include "runners.hpp"
#include "support.hpp"

namespace dhlo {

struct EnvironmentState {
  // Throws Error.
  explicit EnvironmentState(const dhlo_env_options& given);

  // What is to be told at `level`; `make` returns the text, and isn't called where nobody listens.
  template <class Make>
  void log(dhlo_log_level level, Make&& make) const noexcept {
    if (log_fn == nullptr || level > log_level) return;
    fenced(
        [&] {
          const std::string text = make();
          log_fn(log_ctx, level, text.c_str());
          return true;
        },
        false);
  }
  dhlo_allocator allocator{};
  Account account;
  int64_t num_threads = 1;
  const bool makes_threads;    // the host does
  std::shared_ptr<Pool> pool;  // null with one thread
  Runners runners;
  dhlo_trace_fn trace = nullptr;
  void* trace_ctx = nullptr;
  dhlo_log_fn log_fn = nullptr;
  void* log_ctx = nullptr;
  int32_t log_level = 0;
};

}  // namespace dhlo

struct dhlo_env {
  std::shared_ptr<dhlo::EnvironmentState> environment;
  std::atomic<int64_t> references{1};
};
