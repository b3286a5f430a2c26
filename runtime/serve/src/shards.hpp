// Several processes that run a step together, each with its part of the weights and of the pools: number 0 schedules
// and samples, and tells the others of each call of the step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache.hpp"
#include "dhlo/runtime.h"
#include "span.hpp"

namespace dhlo::serve {

// What all processes make alike.
struct ShardPlan {
  int64_t num_blocks, max_tokens, max_sequences;
};

// One of the processes. Messages go through the communicator of the step's own operations, in order with these, so that
// whatever connects the processes carries them. One thread calls it.
class Shards {
 public:
  enum class Heard { kStep, kEnd };

  // The communicator is copied; its ctx must outlive this. An operation that takes longer than so many nanoseconds
  // fails.
  Shards(const dhlo_communicator& communicator, int64_t timeout_ns);
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;
  // Number 0 lets the others end.
  ~Shards() { end(); }

  // For the step's session: the host's, with the timeout.
  const dhlo_communicator* communicator() const { return &bounded_; }
  // Once the session is there: in which group, as number 0 or as another. Throws Error.
  void join(bool leads);
  int64_t size() const { return size_; }

  // What the processes are to make alike, and what follows from the step and must be alike; number 0 says it. Throws
  // Error, where another's step is of another kind.
  ShardPlan plan(const ShardPlan& mine, const std::vector<int64_t>& step);
  // Whether all processes are ready. Throws Error if it fails.
  bool agree(bool ready);
  // The same of one that isn't, whose own error says why; where the others can't be told, that stays the error.
  void decline() noexcept;

  // Of number 0. False: error() says why; then, and after a call of the step that failed, processes may be out of step,
  // and nothing is told any more.
  bool tell(Span<const SlotCopy> copies, Span<const dhlo_tensor> inputs, Span<const int64_t> told);
  void fail(const std::string& why);
  // Tells the others that number 0 is there, if it is time to: when nothing was told for long.
  void keep_alive();
  int64_t next_ns() const { return next_ns_; }
  void end() noexcept;
  const std::string& error() const { return error_; }

  // Of the others: waits for what number 0 tells. Throws Error.
  Heard hear();
  // Of the last step that was heard. What the inputs point to stays until the next.
  std::vector<SlotCopy> copies() const;
  // Sizes and data of the inputs that are told. Throws Error.
  void read(Span<dhlo_tensor> inputs, Span<int64_t* const> sizes, Span<const int64_t> told) const;

 private:
  enum Kind : int64_t { kPlan, kStep, kAlive, kEnd };
  struct Header {
    int64_t magic, kind, bytes, copies;  // bytes of what follows
  };

  static int32_t find_group(void* ctx, const char* group, int64_t* size, int64_t* rank);
  template <dhlo_collective_fn dhlo_communicator::* hook>
  static int32_t run(void* ctx, const dhlo_collective* operation);
  bool exchange(dhlo_collective what, const char* action);
  bool broadcast(int64_t first, int64_t bytes);
  bool send(Kind kind, int64_t copies);
  void shut(std::string why) noexcept;
  Header receive();
  void append(const void* data, size_t bytes);
  void need_all(bool done) const;

  const dhlo_communicator host_;
  dhlo_communicator bounded_;
  const int64_t timeout_ns_;
  int64_t least_timeout_ns_ = timeout_ns_;  // of all processes
  std::string group_;
  int64_t size_ = 0, rank_ = 0, groups_ = 0;
  bool open_ = false;  // number 0: the others wait for what it tells
  int64_t next_ns_ = INT64_MAX;
  std::string error_;
  // A message as it is sent, and as it is received: a header and what follows. An operation's input and output share no
  // byte.
  std::vector<uint8_t> out_, in_;
};

// 0: a minute.
inline int64_t peer_timeout(int64_t given_ns) { return given_ns > 0 ? given_ns : 60000000000; }

// Runs the steps of an engine of another process, number 0, until that is closed. Throws Error.
void follow(dhlo_model* model, const dhlo_communicator& communicator, int64_t timeout_ns);

}  // namespace dhlo::serve
