// Where blocks go that the pools have no room for: files of a folder, objects of the host's store.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dhlo/store.h"
#include "tier_file.hpp"
#include "tier_folder.hpp"
#include "tier_store.hpp"

namespace dhlo::serve {

struct TierOptions {
  std::string folder;                          // "": none. Made if it isn't there; its files are its user's alone
  int64_t folder_bytes = 0;                    // of all its files at most, whoever wrote them
  dhlo_store store{};                          // no `put` and `get`: none
  int64_t staging_bytes = int64_t{256} << 20;  // of blocks on their way, in each direction
  int64_t flush_ns = 5000000000;               // how long the cache writes what it keeps, when it is destroyed
};

// A thread reads and writes the folder, others call the store; nobody waits for them but flush() and end(). What a tier
// does wrong costs its blocks, no more.
class Tiers {
 public:
  // Null where there are no tiers. Throws std::bad_alloc, std::system_error.
  static std::unique_ptr<Tiers> create(const TierOptions& options, TierLayout layout, std::vector<bool> needed);
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;
  ~Tiers() { end(); }

  // Ends the threads, once calls of the store that are in work have come back: nothing is written or fetched any more.
  void end() noexcept;

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
  // What has come, once; no data if nothing has.
  StagedBlock take(const BlockName& name) noexcept;

  TierStats folder_stats() const;
  TierStats store_stats() const { return store_ == nullptr ? TierStats{} : store_->stats(); }

 private:
  struct Fetch {
    int64_t number;
    std::vector<Digest> keys;
  };
  // What a fetch asks the store for, in order.
  struct Gets {
    int64_t number;
    std::vector<BlockName> names;
    size_t next = 0, end = 0;  // of names: who is asked for next; nothing from here on is wanted
    int64_t in_work = 0;
  };

  Tiers(const TierOptions& options, TierLayout layout, std::vector<bool> needed);
  void run() noexcept;
  void run_store() noexcept;
  void get_next(std::unique_lock<std::mutex>& lock, std::list<Gets>::iterator gets) noexcept;
  void put_next(std::unique_lock<std::mutex>& lock) noexcept;
  void write_some(std::vector<StagedBlock> blocks);
  void queue_put(StagedBlock block);
  void keep_in_folder(const StagedBlock& block);
  bool fetch_all(const Fetch& fetch);
  StagedBlock find(const BlockName& name);
  bool from_queue(const BlockName& name, StagedBlock* block) const;
  bool add_fetched(StagedBlock block, int64_t number);
  bool renew(const BlockName& name, int64_t number);
  int64_t& first_bytes() { return folder_ != nullptr ? writing_bytes_ : putting_bytes_; }
  void note_folder();

  const TierOptions options_;
  const TierLayout layout_;
  const std::vector<bool> needed_;
  std::unique_ptr<TierFolder> folder_;  // the thread's
  int64_t folder_failures_ = 0;         // the thread's
  std::unique_ptr<TierStore> store_;

  mutable std::mutex mutex_;
  std::condition_variable work_, store_work_, done_;
  std::deque<StagedBlock> to_write_;  // to the folder
  std::deque<StagedBlock> to_put_;    // to the store
  std::deque<Fetch> to_fetch_;
  std::list<Gets> gets_;
  std::set<int64_t> fetching_;                          // numbers of fetches that go on
  std::list<std::pair<int64_t, StagedBlock>> fetched_;  // with the number of the fetch, the oldest first
  std::unordered_map<BlockName, std::list<std::pair<int64_t, StagedBlock>>::iterator, BlockNameHash> by_name_;
  int64_t writing_bytes_ = 0, putting_bytes_ = 0, fetched_bytes_ = 0;
  int64_t last_fetch_ = 0;
  TierStats folder_stats_;
  bool ends_ = false;
  std::thread thread_;
  std::vector<std::thread> store_threads_;
};

}  // namespace dhlo::serve
