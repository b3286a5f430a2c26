// Memory of large output tensors, kept for the next run when a tensor dies.
#include "output_pool.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace dhlo::python {
namespace {

// A block may serve a tensor that needs at least this share of it.
constexpr int64_t kLargestWaste = 2;
// Idle blocks and blocks in use together never exceed so many times what was in use at once. With less than 2, the
// block of the largest shape would go whenever a small one is called in between.
constexpr int64_t kMostHeld = 2;

}  // namespace

dlpack::ManagedTensorVersioned* OutputPool::take(const dlpack::Tensor& prototype, int64_t bytes) noexcept {
  std::unique_ptr<Entry> entry = reuse(bytes);
  if (!entry) {
    entry.reset(new (std::nothrow) Entry);
    if (!entry || !entry->block.allocate(bytes, {})) return nullptr;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_bytes_ += entry->block.bytes();
    most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  }
  entry->pool = shared_from_this();
  int64_t stride = 1;
  for (int32_t d = prototype.rank - 1; d >= 0; --d) {
    entry->sizes[d] = prototype.sizes[d];
    entry->strides[d] = stride;
    stride *= prototype.sizes[d];
  }
  entry->managed.version = {dlpack::kMajorVersion, dlpack::kMinorVersion};
  entry->managed.context = entry.get();
  entry->managed.deleter = give_back;
  entry->managed.flags = 0;
  entry->managed.tensor = prototype;
  entry->managed.tensor.data = entry->block.data();
  entry->managed.tensor.sizes = entry->sizes;
  entry->managed.tensor.strides = entry->strides;
  return &entry.release()->managed;
}

void OutputPool::give_back(dlpack::ManagedTensorVersioned* managed) noexcept {
  std::unique_ptr<Entry> entry(static_cast<Entry*>(managed->context));
  const std::shared_ptr<OutputPool> pool = std::move(entry->pool);
  pool->keep(std::move(entry));
}

std::unique_ptr<OutputPool::Entry> OutputPool::reuse(int64_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto last = idle_.end();  // used, and so the likeliest to be in a cache
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const int64_t size = (*it)->block.bytes();
    if (size >= bytes && size / kLargestWaste <= bytes) last = it;
  }
  if (last == idle_.end()) return nullptr;
  std::unique_ptr<Entry> entry = std::move(*last);
  idle_.erase(last);
  idle_bytes_ -= entry->block.bytes();
  return entry;
}

void OutputPool::trim() noexcept {
  Entries dropped;  // freed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(idle_);
  idle_bytes_ = 0;
  most_used_bytes_ = used_bytes_;
}

void OutputPool::keep(std::unique_ptr<Entry> entry) noexcept {
  Entries dropped;  // freed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ -= entry->block.bytes();
  idle_bytes_ += entry->block.bytes();
  try {
    idle_.push_back(std::move(entry));
  } catch (const std::bad_alloc&) {  // a list node: the block goes with its entry
    idle_bytes_ -= entry ? entry->block.bytes() : 0;
    return;
  }
  while (idle_bytes_ + used_bytes_ > kMostHeld * most_used_bytes_) {
    idle_bytes_ -= idle_.front()->block.bytes();
    dropped.splice(dropped.end(), idle_, idle_.begin());
  }
}

}  // namespace dhlo::python
