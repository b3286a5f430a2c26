// Asynchronous runs of a session.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dhlo/runtime.h"
#include "runners.hpp"

namespace dhlo {

// A session's asynchronous run, one at a time: from its acceptance until the host's function has returned.
class AsyncRun : public Task, public std::enable_shared_from_this<AsyncRun> {
 public:
  explicit AsyncRun(dhlo_session* session) : session_(session) {}

  // Takes over a claim of the session. Throws Error, and gives the claim back, if no thread can run it.
  void begin(const dhlo_tensor* inputs, int64_t num_inputs, const dhlo_run_options& how, dhlo_done_fn done, void* ctx);
  // Stops what was accepted, and waits until the host has been told; if the caller is the host's function that is being
  // told, for all but that.
  void end() noexcept;
  void run() noexcept override;

 private:
  Runners& runners() const;
  void keep(const dhlo_tensor* inputs, int64_t num_inputs);

  dhlo_session* const session_;
  std::vector<dhlo_tensor> inputs_;
  std::vector<int64_t> numbers_;  // sizes and strides
  dhlo_done_fn done_ = nullptr;
  void* ctx_ = nullptr;
  std::shared_ptr<AsyncRun> self_;  // while it is with the runners

  std::mutex mutex_;
  std::condition_variable told_;
  int64_t pending_ = 0;  // accepted, and the host's function hasn't returned
  bool ending_ = false;  // nothing is accepted any more
};

}  // namespace dhlo
