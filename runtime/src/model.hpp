// The immutable part of a loaded program, code, constants and threads, and its entries.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "code.hpp"
#include "env.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace dhlo {

// What the entries of a model share. Lives until the last of them is released.
struct Program {
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  Memory memory() const {
    const bool own = allocator.alloc != nullptr;
    return {own ? &allocator : nullptr, env != nullptr ? &env->account : nullptr};
  }

  std::shared_ptr<EnvironmentState> env;  // or null; first, since all else may be of its memory
  int64_t charged_bytes = 0;              // to the environment, for constants
  Code code;                              // empty for a model from a descriptor
  Block owned_constants;                  // of one from memory, or asked for
  Mapping mapped_constants;               // of others that were loaded
  const dhlo_abi_model* abi = nullptr;
  int64_t level = 0;  // of abi, the one that this machine takes
  const uint8_t* constants = nullptr;
  void (*release)(void* ctx) = nullptr;
  void* release_ctx = nullptr;
  dhlo_allocator allocator{};
  dhlo_parallel parallel{};
  std::shared_ptr<Pool> pool;  // null with one thread or with the host's own threads
  int64_t num_threads = 1;
};

}  // namespace dhlo

// An entry of a program, as code for this machine.
struct dhlo_model {
  dhlo_model(std::shared_ptr<const dhlo::Program> shared, int64_t index)
      : program(std::move(shared)), entry(&program->abi->entries[index]), code(&entry->code[program->level]) {}
  dhlo_model(const dhlo_model&) = delete;
  dhlo_model& operator=(const dhlo_model&) = delete;

  const std::shared_ptr<const dhlo::Program> program;
  const dhlo_abi_entry* const entry;
  const dhlo_abi_code* const code;
  std::atomic<int64_t> references{1};
};
