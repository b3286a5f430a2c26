// Where blocks go that the pools have no room for: files of a folder, objects of the host's store.
#include "tiers.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace dhlo::serve {
namespace {

// Of a file: what a prompt begins with is read in few pieces, and little is lost with a file that is damaged.
constexpr size_t kFileBlocks = 16;
constexpr int64_t kMostThreads = 64;  // that call the store

StagedBlock make_block(const BlockName& name, int64_t bytes) {
  return {name, bytes, std::unique_ptr<uint8_t[]>(new uint8_t[static_cast<size_t>(bytes)]), false};
}

}  // namespace

std::unique_ptr<Tiers> Tiers::create(const TierOptions& options, TierLayout layout, std::vector<bool> needed) {
  if (options.folder.empty() && options.store.put == nullptr && options.store.get == nullptr) return nullptr;
  std::unique_ptr<Tiers> tiers(new Tiers(options, std::move(layout), std::move(needed)));
  Tiers* const all = tiers.get();
  all->thread_ = std::thread([all] { all->run(); });
  if (all->store_ == nullptr) return tiers;
  const auto threads = static_cast<size_t>(std::clamp<int64_t>(options.store.threads, 1, kMostThreads));
  all->store_threads_.reserve(threads);
  while (all->store_threads_.size() < threads) all->store_threads_.emplace_back([all] { all->run_store(); });
  return tiers;
}

Tiers::Tiers(const TierOptions& options, TierLayout layout, std::vector<bool> needed)
    : options_(options), layout_(std::move(layout)), needed_(std::move(needed)) {
  if (!options.folder.empty()) folder_ = std::make_unique<TierFolder>(options.folder, options.folder_bytes, layout_);
  if (options.store.put != nullptr || options.store.get != nullptr)
    store_ = std::make_unique<TierStore>(options.store, layout_);
}

void Tiers::end() noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  work_.notify_all();
  store_work_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (std::thread& thread : store_threads_)
    if (thread.joinable()) thread.join();
}

StagedBlock Tiers::stage(const BlockName& name) noexcept {
  const int64_t bytes = layout_.block_bytes[static_cast<size_t>(name.group)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_bytes() + bytes > options_.staging_bytes) {
      if (folder_ != nullptr)
        ++folder_stats_.dropped;
      else
        store_->drop();
      return {};
    }
  }
  try {
    return make_block(name, bytes);
  } catch (const std::bad_alloc&) {
    return {};  // it is computed again
  }
}

void Tiers::write(StagedBlock block) noexcept try {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (folder_ == nullptr) return queue_put(std::move(block));
  const int64_t bytes = block.bytes;
  to_write_.push_back(std::move(block));
  writing_bytes_ += bytes;
  work_.notify_one();
} catch (const std::bad_alloc&) {
  // It is computed again.
}

bool Tiers::wait_written(std::chrono::steady_clock::time_point until, bool all) {
  const int64_t most = *std::max_element(layout_.block_bytes.begin(), layout_.block_bytes.end());
  std::unique_lock<std::mutex> lock(mutex_);
  return done_.wait_until(lock, until, [&] {
    if (!all) return first_bytes() == 0 || first_bytes() + most <= options_.staging_bytes;
    return writing_bytes_ == 0 && putting_bytes_ == 0;
  });
}

int64_t Tiers::fetch(std::vector<Digest> keys) noexcept try {
  const std::lock_guard<std::mutex> lock(mutex_);
  to_fetch_.push_back({last_fetch_ + 1, std::move(keys)});
  try {
    fetching_.insert(last_fetch_ + 1);
  } catch (const std::bad_alloc&) {
    to_fetch_.pop_back();
    return 0;
  }
  work_.notify_one();
  return ++last_fetch_;
} catch (const std::bad_alloc&) {
  return 0;
}

bool Tiers::is_fetched(int64_t fetch) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fetching_.count(fetch) == 0;
}

void Tiers::wait_fetched(int64_t fetch, std::chrono::steady_clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait_until(lock, until, [&] { return fetching_.count(fetch) == 0; });
}

// Whether an earlier fetch has brought it, which goes for this one's then.
bool Tiers::renew(const BlockName& name, int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return false;
  if (found->second->first < number) {
    found->second->first = number;
    fetched_.splice(fetched_.end(), fetched_, found->second);
  }
  return true;
}

StagedBlock Tiers::take(const BlockName& name) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return {};
  StagedBlock block = std::move(found->second->second);
  fetched_.erase(found->second);
  by_name_.erase(found);
  fetched_bytes_ -= block.bytes;
  return block;
}

TierStats Tiers::folder_stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return folder_stats_;
}

// ---- on the thread --------------------------------------------------------------------------------------------------

void Tiers::run() noexcept {
  try {
    if (folder_ != nullptr) folder_->scan();
    note_folder();
  } catch (const std::bad_alloc&) {
    // What isn't known isn't found.
  }
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    // The C++ library's wait without a limit lacks on older systems.
    while (!ends_ && to_fetch_.empty() && to_write_.empty()) work_.wait_for(lock, std::chrono::hours(1));
    if (ends_) return;
    if (!to_fetch_.empty()) {  // first: somebody waits for it
      const Fetch fetch = std::move(to_fetch_.front());
      to_fetch_.pop_front();
      lock.unlock();
      bool whole = true;
      try {
        whole = fetch_all(fetch);
        note_folder();
      } catch (const std::bad_alloc&) {
        // What has come has come.
      }
      lock.lock();
      if (whole) fetching_.erase(fetch.number);
    } else {
      std::vector<StagedBlock> blocks;
      int64_t bytes = 0;
      try {
        blocks.reserve(kFileBlocks);
      } catch (const std::bad_alloc&) {
        // They are dropped, so that nobody waits for them without end.
        to_write_.clear();
        writing_bytes_ = 0;
      }
      for (; !to_write_.empty() && blocks.size() < kFileBlocks; to_write_.pop_front()) {
        bytes += to_write_.front().bytes;
        blocks.push_back(std::move(to_write_.front()));
      }
      lock.unlock();
      try {
        write_some(std::move(blocks));
        note_folder();
      } catch (const std::bad_alloc&) {
        // They are computed again.
      }
      lock.lock();
      writing_bytes_ -= bytes;
    }
    done_.notify_all();
  }
}

void Tiers::note_folder() {
  if (folder_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  folder_stats_.bytes = folder_->bytes();
  folder_stats_.blocks = folder_->blocks();
  folder_stats_.failures = folder_failures_ + folder_->damaged();
}

void Tiers::write_some(std::vector<StagedBlock> blocks) {
  folder_->scan();
  // Other processes may have written the same.
  const auto missing = [&](const StagedBlock& block) { return !folder_->has(block.name); };
  const auto end = std::partition(blocks.begin(), blocks.end(), missing);
  const auto count = static_cast<size_t>(end - blocks.begin());
  if (count > 0 && !folder_->write(blocks.data(), count)) ++folder_failures_;
  if (store_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (StagedBlock& block : blocks) {
    if (block.in_store) continue;
    if (putting_bytes_ + block.bytes > options_.staging_bytes)
      store_->drop();
    else
      queue_put(std::move(block));
  }
}

// Of what the store had: into the folder, too. The caller holds mutex_.
void Tiers::keep_in_folder(const StagedBlock& block) {
  if (folder_ == nullptr || writing_bytes_ + block.bytes > options_.staging_bytes) return;
  StagedBlock copy = make_block(block.name, block.bytes);
  std::memcpy(copy.data.get(), block.data.get(), static_cast<size_t>(block.bytes));
  copy.in_store = true;
  to_write_.push_back(std::move(copy));
  writing_bytes_ += block.bytes;
  work_.notify_one();
}

// The caller holds mutex_.
void Tiers::queue_put(StagedBlock block) {
  const int64_t bytes = block.bytes;
  to_put_.push_back(std::move(block));
  putting_bytes_ += bytes;
  store_work_.notify_one();
}

bool Tiers::from_queue(const BlockName& name, StagedBlock* block) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::deque<StagedBlock>* queue : {&to_write_, &to_put_}) {
    const auto found =
        std::find_if(queue->begin(), queue->end(), [&](const StagedBlock& each) { return each.name == name; });
    if (found == queue->end()) continue;
    std::memcpy(block->data.get(), found->data.get(), static_cast<size_t>(block->bytes));
    return true;
  }
  return false;
}

StagedBlock Tiers::find(const BlockName& name) {
  StagedBlock block = make_block(name, layout_.block_bytes[static_cast<size_t>(name.group)]);
  if (from_queue(name, &block)) return block;
  if (folder_ == nullptr || !folder_->read(name, block.data.get())) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  ++folder_stats_.hits;
  return block;
}

// False: the store is asked for the rest.
bool Tiers::fetch_all(const Fetch& fetch) {
  if (folder_ != nullptr) folder_->scan();
  const bool asks = store_ != nullptr && store_->reads();
  Gets gets{fetch.number, {}, 0, 0, 0};
  bool goes_on = true;
  for (size_t i = 0; i < fetch.keys.size() && goes_on; ++i) {
    for (size_t group = 0; group < layout_.block_bytes.size() && goes_on; ++group) {
      const BlockName name{fetch.keys[i], static_cast<int64_t>(group)};
      if (renew(name, fetch.number)) continue;
      StagedBlock block = find(name);
      if (block.data != nullptr)
        goes_on = add_fetched(std::move(block), fetch.number);
      else if (asks)
        gets.names.push_back(name);
      else
        goes_on = !needed_[group];
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    goes_on = goes_on && !ends_;
  }
  if (folder_ != nullptr) folder_->mark_used();
  if (gets.names.empty()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  gets.end = gets.names.size();
  gets_.push_back(std::move(gets));
  store_work_.notify_all();
  return false;
}

// What earlier fetches brought and nobody took goes for it, not what it follows. False if there is no room. One that
// another fetch has brought meanwhile stays.
bool Tiers::add_fetched(StagedBlock block, int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (by_name_.count(block.name) > 0) return true;
  while (fetched_bytes_ + block.bytes > options_.staging_bytes) {
    if (fetched_.empty() || fetched_.front().first >= number) return false;
    fetched_bytes_ -= fetched_.front().second.bytes;
    by_name_.erase(fetched_.front().second.name);
    fetched_.pop_front();
  }
  const BlockName name = block.name;
  const int64_t bytes = block.bytes;
  const auto at = fetched_.emplace(fetched_.end(), number, std::move(block));
  try {
    by_name_[name] = at;
  } catch (...) {
    fetched_.erase(at);
    throw;
  }
  fetched_bytes_ += bytes;
  return true;
}

// ---- on the store's threads -----------------------------------------------------------------------------------------

void Tiers::run_store() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_) {
    const auto gets = std::find_if(gets_.begin(), gets_.end(), [](const Gets& each) { return each.next < each.end; });
    if (gets != gets_.end())  // first: somebody waits for it
      get_next(lock, gets);
    else if (!to_put_.empty())
      put_next(lock);
    else
      store_work_.wait_for(lock, std::chrono::hours(1));
  }
}

void Tiers::get_next(std::unique_lock<std::mutex>& lock, std::list<Gets>::iterator gets) noexcept {
  const size_t at = gets->next++;
  const BlockName name = gets->names[at];
  ++gets->in_work;
  lock.unlock();
  bool goes_on = false;
  try {
    StagedBlock block = make_block(name, layout_.block_bytes[static_cast<size_t>(name.group)]);
    if (renew(name, gets->number)) {  // another fetch has brought it
      goes_on = true;
    } else if (store_->get(&block)) {
      {
        const std::lock_guard<std::mutex> locked(mutex_);
        keep_in_folder(block);
      }
      goes_on = add_fetched(std::move(block), gets->number);
    } else {
      goes_on = !needed_[static_cast<size_t>(name.group)];
    }
  } catch (const std::bad_alloc&) {
    // What has come has come.
  }
  lock.lock();
  --gets->in_work;
  if (!goes_on) gets->end = std::min(gets->end, at);
  if (gets->in_work > 0 || gets->next < gets->end) return;
  fetching_.erase(gets->number);
  gets_.erase(gets);
  done_.notify_all();
}

void Tiers::put_next(std::unique_lock<std::mutex>& lock) noexcept {
  const StagedBlock block = std::move(to_put_.front());
  to_put_.pop_front();
  lock.unlock();
  try {
    store_->put(block);
  } catch (const std::bad_alloc&) {
    // It is computed again.
  }
  lock.lock();
  putting_bytes_ -= block.bytes;
  done_.notify_all();
}

}  // namespace dhlo::serve
