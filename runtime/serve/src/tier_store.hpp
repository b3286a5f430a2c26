// Objects of the host's store, a block each.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "dhlo/store.h"
#include "tier_file.hpp"

namespace dhlo::serve {

struct TierStats {
  int64_t bytes = 0, blocks = 0;  // there now, as far as is known; of a store: that were put there
  int64_t hits = 0;               // blocks that came from it
  int64_t failures = 0;           // what couldn't be written or read, or was damaged
  int64_t dropped = 0;            // blocks that came faster than they could be written
};

// Any number of threads use it. Throws std::bad_alloc alone. A store that fails again and again is left alone for a
// while, twice as long each time.
class TierStore {
 public:
  TierStore(const dhlo_store& hooks, TierLayout layout) : hooks_(hooks), layout_(std::move(layout)) {}

  bool reads() const { return hooks_.get != nullptr; }
  void put(const StagedBlock& block);
  // Whether the block is there and what its digest says. One that is damaged is removed.
  bool get(StagedBlock* block);
  // A block that there was no room for.
  void drop();
  TierStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool rests() const;
  void note(bool answered);
  std::string object_name(const BlockName& name) const;
  bool unpack(const std::vector<uint8_t>& object, int64_t got, StagedBlock* block) const;

  const dhlo_store hooks_;
  const TierLayout layout_;
  mutable std::mutex mutex_;
  TierStats stats_;
  int64_t failed_ = 0;  // calls in a row
  Clock::time_point rests_until_{};
};

}  // namespace dhlo::serve
