// What the runtime's C++ tests share: checks, and models and calls of the toy model, which is linked in.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "dhlo/runtime.hpp"

// Sanitizers have allocators of their own, which can't be replaced.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#else
#define COUNTS_ALLOCATIONS 1
#endif

extern "C" const dhlo_abi_model dhlo_model_v1;

inline int failures = 0;
inline std::atomic<int64_t> allocations{0};  // so far, by the process

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                         \
    }                                                                     \
  } while (false)

struct Constants {
  alignas(64) float bias[4] = {1, 2, 3, 4};
  int64_t zero = 0;
};
inline const Constants constants;

inline dhlo::Model make_model(const dhlo_model_options* options = nullptr) {
  return dhlo::Model::from(dhlo_model_v1, &constants, 24, options);
}

inline dhlo::Model make_model_with_threads(int64_t threads) {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.num_threads = threads;
  return make_model(&options);
}

// Inputs of one call, with x[i] = i % 13 - 6.
struct Call {
  explicit Call(int64_t rows, int64_t m = 0) : mode(m), x(static_cast<size_t>(rows) * 4) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int64_t>(i % 13) - 6);
    sizes[0] = rows;
    views[0] = {x.data(), sizes, nullptr, DHLO_F32, 2, 0};
    views[1] = {&mode, nullptr, nullptr, DHLO_I64, 0, 0};
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  dhlo_status run(dhlo_session* session) { return dhlo_session_run(session, views, 2); }
  bool right(dhlo_session* session) const {
    dhlo_tensor y, positive;
    if (dhlo_session_output(session, 0, &y) != DHLO_OK || dhlo_session_output(session, 1, &positive) != DHLO_OK)
      return false;
    if (y.sizes[0] != sizes[0] || y.sizes[1] != 4 || y.rank != 2 || y.dtype != DHLO_F32) return false;
    int64_t count = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (static_cast<const float*>(y.data)[i] != 2 * x[i] + constants.bias[i % 4]) return false;
      if (x[i] > 0 && static_cast<const float*>(positive.data)[count++] != x[i]) return false;
    }
    return positive.sizes[0] == count;
  }

  int64_t mode;
  int64_t sizes[2] = {0, 4};
  std::vector<float> x;
  dhlo_tensor views[2];
};

inline std::string error_of(const dhlo::Session& session) { return dhlo_session_error(session.get()); }

// Facts of the machine: their file, what hosts and the environment say, ranges. Run first: facts are found once.
void test_machine();
// Hooks, null arguments and shared memory; allocations and threads that fail. `file` is a file of the toy model, or null.
void test_hostile_hosts();
void test_failures(const char* file);
// What a host sees and steers of runs.
void test_control();
// Operations with other processes.
void test_collectives();
// Threads, limits and hooks that sessions share; asynchronous runs.
void test_environments();
