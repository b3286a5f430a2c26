// Where blocks go that the pools have no room for: files of a folder, objects of the host's store.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dhlo/store.h"
#include "tier_file.hpp"
#include "tier_folder.hpp"

namespace dhlo::serve {

struct TierOptions {
  std::string folder;                          // "": none. Made if it isn't there; its files are its user's alone
  int64_t folder_bytes = 0;                    // of all its files at most, whoever wrote them
  dhlo_store store{};                          // no `put` and `get`: none
  int64_t staging_bytes = int64_t{256} << 20;  // of blocks on their way, in each direction
  int64_t flush_ns = 5000000000;               // how long the cache writes what it keeps, when it is destroyed
};

struct TierStats {
  int64_t bytes = 0, blocks = 0;  // there now, as far as is known; of a store: that were put there
  int64_t hits = 0;               // blocks that came from it
  int64_t failures = 0;           // what couldn't be written, or was damaged
};

// A thread reads and writes; nobody waits for it but flush(). What a tier does wrong costs its blocks, no more.
class Tiers {
 public:
  // Null where there are no tiers. Throws std::bad_alloc, std::system_error.
  static std::unique_ptr<Tiers> create(const TierOptions& options, TierLayout layout, std::vector<bool> needed);
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;
  ~Tiers();

  // Memory for a block that is to be written; no data where staging_bytes are on their way, or there is none.
  StagedBlock stage(const BlockName& name) noexcept;
  void write(StagedBlock block) noexcept;
  // Waits until there is room for a block of each group, or all is written. False when the time is over.
  bool wait_written(std::chrono::steady_clock::time_point until, bool all);
  // Fetches blocks of these keys, of all groups, until there is one that a group `needed` and isn't there. Returns a
  // number for is_fetched(), 0 if there was no memory.
  int64_t fetch(std::vector<Digest> keys) noexcept;
  bool is_fetched(int64_t fetch) const;
  void wait_fetched(int64_t fetch, std::chrono::steady_clock::time_point until);
  // Whether it has come.
  bool has(const BlockName& name) const;
  // What has come, once; no data if nothing has.
  StagedBlock take(const BlockName& name) noexcept;

  TierStats folder_stats() const;
  TierStats store_stats() const;
  int64_t dropped() const;  // blocks that there was no room for

 private:
  struct Fetch {
    int64_t number;
    std::vector<Digest> keys;
  };

  Tiers(const TierOptions& options, TierLayout layout, std::vector<bool> needed);
  void run() noexcept;
  void write_some(std::vector<StagedBlock> blocks);
  void fetch_all(const Fetch& fetch);
  StagedBlock find(const BlockName& name);
  bool from_queue(const BlockName& name, StagedBlock* block) const;
  bool from_store(const BlockName& name, StagedBlock* block);
  void put(const StagedBlock& block);
  bool add_fetched(StagedBlock block, int64_t number);
  std::string object_name(const BlockName& name) const;
  void note_folder();

  const TierOptions options_;
  const TierLayout layout_;
  const std::vector<bool> needed_;
  std::unique_ptr<TierFolder> folder_;  // the thread's
  int64_t folder_failures_ = 0;         // the thread's

  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<StagedBlock> to_write_;
  std::deque<Fetch> to_fetch_;
  std::list<std::pair<int64_t, StagedBlock>> fetched_;  // with the number of the fetch, the oldest first
  std::unordered_map<BlockName, std::list<std::pair<int64_t, StagedBlock>>::iterator, BlockNameHash> by_name_;
  int64_t writing_bytes_ = 0, fetched_bytes_ = 0;
  int64_t last_fetch_ = 0, fetched_until_ = 0, dropped_ = 0;
  TierStats folder_stats_, store_stats_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace dhlo::serve
