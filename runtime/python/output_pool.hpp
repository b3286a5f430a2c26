// Memory of large output tensors, kept for the next run when a tensor dies: fresh pages cost more than most kernels.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "../src/memory.hpp"
#include "dlpack.hpp"

namespace dhlo::python {

// Shared by a session and the tensors that it gave out; tensors may outlive the session and die on any thread.
// It never holds more than twice what was in use at once, so that random shapes don't make it grow.
class OutputPool : public std::enable_shared_from_this<OutputPool> {
 public:
  // Tensors below this many bytes are better served by torch's own allocator.
  static constexpr int64_t kSmallest = 32 << 10;

  // A dense tensor of `bytes` bytes with the prototype's type and sizes; its deleter gives the memory back. Null if
  // there is no memory. Callable without the GIL.
  dlpack::ManagedTensorVersioned* take(const dlpack::Tensor& prototype, int64_t bytes) noexcept;
  // Frees what no tensor uses.
  void trim() noexcept;

 private:
  struct Entry {
    dlpack::ManagedTensorVersioned managed{};  // first: the deleter finds the entry by it
    Block block;
    int64_t sizes[8] = {}, strides[8] = {};
    std::shared_ptr<OutputPool> pool;  // set while a tensor uses the block
  };
  using Entries = std::list<std::unique_ptr<Entry>>;

  static void give_back(dlpack::ManagedTensorVersioned* managed) noexcept;
  std::unique_ptr<Entry> reuse(int64_t bytes) noexcept;
  void keep(std::unique_ptr<Entry> entry) noexcept;

  std::mutex mutex_;
  Entries idle_;  // least recently used first
  int64_t idle_bytes_ = 0, used_bytes_ = 0, most_used_bytes_ = 0;
};

}  // namespace dhlo::python
