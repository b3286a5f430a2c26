// The immutable part of a loaded program: code, constants, threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "code.hpp"
#include "memory.hpp"
#include "pool.hpp"

struct dhlo_model {
  dhlo_model() = default;
  dhlo_model(const dhlo_model&) = delete;
  dhlo_model& operator=(const dhlo_model&) = delete;
  ~dhlo_model();

  const dhlo_allocator* host_allocator() const { return allocator.alloc != nullptr ? &allocator : nullptr; }

  std::atomic<int64_t> references{1};
  dhlo::Code code;              // empty for a model from a descriptor
  dhlo::Block owned_constants;  // likewise
  const dhlo_abi_model* abi = nullptr;
  const dhlo_abi_level* level = nullptr;  // of abi, the one that this machine takes
  const uint8_t* constants = nullptr;
  void (*release)(void* ctx) = nullptr;
  void* release_ctx = nullptr;
  dhlo_allocator allocator{};
  dhlo_parallel parallel{};
  std::shared_ptr<dhlo::Pool> pool;  // null with one thread or with the host's own threads
  int64_t num_threads = 1;
};
