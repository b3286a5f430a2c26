// What one caller needs to run a model: arena, scratch, mutable state, outputs, counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "host_threads.hpp"
#include "memory.hpp"
#include "model.hpp"
#include "overlap.hpp"
#include "stop.hpp"
#include "support.hpp"
#include "trace.hpp"

namespace dhlo {

class AsyncRun;

constexpr int64_t kNoCap = std::numeric_limits<int64_t>::max();
constexpr int64_t kReads = -2;  // of an input that the run doesn't write to

// One output: the sizes that the last run gave it, and where its memory comes from.
struct Output {
  void* data = nullptr;  // null until the run in progress has produced it, and for a caller's empty tensor
  bool produced = false;
  int32_t rank = 0;
  int64_t sizes[DHLO_ABI_MAX_RANK] = {};
  Block owned;
  void* bound = nullptr;
  int64_t capacity = 0;
};

// Memory that a run is given: of an input, bound to an output, or of its states.
struct Given {
  Region region;
  int64_t index;
  enum Kind { kInput, kOutput, kState } kind;
  bool written;
};

// What sessions that share state have in common: that, the random generator, and memory that is used during a run only.
// One of them runs at a time.
struct Common {
  // Throws Error if the state doesn't fit.
  Common(std::shared_ptr<const Program> of, int64_t max_bytes);
  void reset_state();
  void trim();

  const std::shared_ptr<const Program> program;  // blocks may belong to the allocator inside
  Block state;
  int64_t random[2] = {};
  std::vector<Block> segments;
  std::vector<uint64_t> segment_runs;  // by segment: the last run that used it
  uint64_t run_number = 0;
  Block scratch;
  int64_t scratch_stride = 0;  // bytes of one worker's scratch
  int64_t arena_bytes = 0;     // held
  int64_t scratch_bytes = 0;
  std::atomic<bool> running{false};
};

}  // namespace dhlo

// The services of dhlo_abi_call are its members; compiled code gets the base class.
struct dhlo_session : dhlo_abi_call {
  // Of the same state as others if `with` is not null.
  dhlo_session(dhlo_model* of, const dhlo_session_options& options, std::shared_ptr<dhlo::Common> with);
  dhlo_session(const dhlo_session&) = delete;
  dhlo_session& operator=(const dhlo_session&) = delete;
  ~dhlo_session();

  dhlo_status run(const dhlo_tensor* inputs, int64_t num_inputs, const dhlo_run_options& how) noexcept;
  // The same of a session that is claimed for it, and may be stopped already.
  dhlo_status run_claimed(const dhlo_tensor* inputs, int64_t num_inputs) noexcept;
  void set_profile(bool on);
  void set_trace(dhlo_trace_fn fn, void* ctx);
  void seed(uint64_t value) noexcept;
  // Takes over state and random generator of another session of the same program.
  void copy_state(const dhlo_session& other) noexcept;
  void trim();
  // All that counts against the cap.
  int64_t held_bytes() const noexcept;
  // Frees what is held for other shapes, and not used by the run in progress; `but` stays.
  void release_unused(const dhlo::Block* but) noexcept;
  // Makes `block` hold at least `bytes`, within the cap; false after recording an error.
  bool grow(dhlo::Block* block, int64_t bytes, int64_t* held, const char* what) noexcept;
  // Records an error, with the text that `make` returns, and returns `status`.
  template <class Make>
  dhlo_status record(dhlo_status status, Make&& make) noexcept {
    failure = status;
    try {
      message = make();
    } catch (...) {
      message.clear();
    }
    return status;
  }
  // Throws Error if there is none.
  const dhlo_abi_state& find_state(const char* name) const;
  const dhlo_abi_state& find_state(const char* name, int64_t bytes) const;

  dhlo_model* model;
  dhlo_session_options options;
  const int64_t max_bytes;
  const std::shared_ptr<dhlo::Common> common;
  const dhlo_communicator communicator;  // `options` points to this copy
  std::vector<int64_t> group_sizes;      // of the entry's process groups
  dhlo::Stop stop;
  std::shared_ptr<dhlo::AsyncRun> async;  // made by the first asynchronous run
  int64_t scratch_asked = 0;              // the most scratch that the run in progress has asked for
  std::vector<dhlo::Output> outputs;
  int64_t num_bound = 0;            // outputs with memory of the caller
  int64_t hook_bytes = 0;           // of outputs that the output hook gave memory for in the run in progress
  std::vector<int64_t> writes;      // by input: kReads, or as dhlo_abi_model.grows; empty if the run writes to none
  std::vector<dhlo::Given> given;   // of the run in progress, where anything may share memory that is written
  bool trusts_output_hook = false;  // it gives fresh memory: the Python extension's
  std::unique_ptr<dhlo::HostThreads> host_threads;  // null without the host's own
  bool profiled = false;
  std::vector<dhlo_launch_profile> profile;
  dhlo_trace_fn trace = nullptr;
  void* trace_ctx = nullptr;
  const dhlo::LaunchTrace* tracing = nullptr;  // of the launch in progress
  dhlo_counters counters{};                    // but for what `common` counts
  dhlo_status failure = DHLO_OK;               // of the run in progress
  bool starved = false;                        // it got no memory
  mutable std::string message;

 private:
  static void* serve_arena(dhlo_abi_call* call, int64_t segment, int64_t bytes);
  static void* serve_output(dhlo_abi_call* call, int64_t index, int64_t rank, const int64_t* sizes);
  static int32_t serve_launch(dhlo_abi_call* call, dhlo_kernel fn, const int64_t* args, int64_t count, int64_t grain,
                              int64_t scratch_bytes, int64_t launch);
  static int32_t serve_watched_launch(dhlo_abi_call* call, dhlo_kernel fn, const int64_t* args, int64_t count,
                                      int64_t grain, int64_t scratch_bytes, int64_t launch);
  static int32_t serve_poll(dhlo_abi_call* call, int32_t last);
  static int32_t serve_collective(dhlo_abi_call* call, int64_t index, const void* input, int64_t count, void* output,
                                  int64_t out_count, const int64_t* splits);
  static int32_t serve_fail(dhlo_abi_call* call, int64_t check, int64_t expected, int64_t got);
  static dhlo_communicator read_communicator(const dhlo_communicator* given);
  // Throws Error where the communicator isn't what the model needs.
  void join_groups();
  // Runs more than one chunk, on whatever threads there are.
  int32_t run_chunks(const dhlo::Launch& work) noexcept;
  int32_t record_stop() noexcept;
  void choose_services();
  dhlo::LaunchTrace tracer(const char* name, int64_t index) const;
  void trace_run(int64_t begin_ns, dhlo_status status) const;
  void* place_output(int64_t index, dhlo::Output& output, int64_t bytes) noexcept;
  std::string describe(const dhlo::Given& given) const;
  // Throws Error where a tensor reaches beyond its memory, or shares some that the run writes.
  void check_memory(const dhlo_tensor* inputs);
  void check_sharing(const dhlo_tensor* inputs);
  bool reaches_own_memory(const dhlo_tensor* inputs) const;
  void run_checked(const dhlo_tensor* inputs, int64_t num_inputs);
  bool is_free(int64_t index, const void* data, int64_t bytes);
};

namespace dhlo {

extern const char* const kBusy;

// Keeps a session to one call at a time; the refused one's text is in dhlo_last_error().
class Claim {
 public:
  explicit Claim(const dhlo_session& session)
      : session_(session), held_(!session.common->running.exchange(true, std::memory_order_acquire)) {
    if (!held_) set_last_error(kBusy);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (held_) session_.common->running.store(false, std::memory_order_release);
  }
  explicit operator bool() const { return held_; }

 private:
  const dhlo_session& session_;
  const bool held_;
};

}  // namespace dhlo
