// Where blocks go that the pools have no room for: files of a folder, objects of the host's store.
#include "tiers.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace dhlo::serve {
namespace {

// Of a file: what a prompt begins with is read in few pieces, and little is lost with a file that is damaged.
constexpr size_t kFileBlocks = 16;

// Calls into the host, whose exceptions must not come further.
template <class Hook, class Value>
Value fenced(Hook&& hook, Value failed) noexcept {
  try {
    return hook();
  } catch (...) {
    return failed;
  }
}

StagedBlock make_block(const BlockName& name, int64_t bytes) {
  return {name, bytes, std::unique_ptr<uint8_t[]>(new uint8_t[static_cast<size_t>(bytes)])};
}

}  // namespace

std::unique_ptr<Tiers> Tiers::create(const TierOptions& options, TierLayout layout, std::vector<bool> needed) {
  if (options.folder.empty() && options.store.put == nullptr && options.store.get == nullptr) return nullptr;
  std::unique_ptr<Tiers> tiers(new Tiers(options, std::move(layout), std::move(needed)));
  tiers->thread_ = std::thread([all = tiers.get()] { all->run(); });
  return tiers;
}

Tiers::Tiers(const TierOptions& options, TierLayout layout, std::vector<bool> needed)
    : options_(options), layout_(std::move(layout)), needed_(std::move(needed)) {
  if (!options.folder.empty()) folder_ = std::make_unique<TierFolder>(options.folder, options.folder_bytes, layout_);
}

Tiers::~Tiers() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

StagedBlock Tiers::stage(const BlockName& name) noexcept {
  const int64_t bytes = layout_.block_bytes[static_cast<size_t>(name.group)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (writing_bytes_ + bytes > options_.staging_bytes) {
      ++dropped_;
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
  return done_.wait_until(
      lock, until, [&] { return writing_bytes_ == 0 || (!all && writing_bytes_ + most <= options_.staging_bytes); });
}

int64_t Tiers::fetch(std::vector<Digest> keys) noexcept try {
  const std::lock_guard<std::mutex> lock(mutex_);
  to_fetch_.push_back({last_fetch_ + 1, std::move(keys)});
  work_.notify_one();
  return ++last_fetch_;
} catch (const std::bad_alloc&) {
  return 0;
}

bool Tiers::is_fetched(int64_t fetch) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fetch <= fetched_until_;
}

void Tiers::wait_fetched(int64_t fetch, std::chrono::steady_clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait_until(lock, until, [&] { return fetch <= fetched_until_; });
}

bool Tiers::has(const BlockName& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return by_name_.count(name) != 0;
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

TierStats Tiers::store_stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return store_stats_;
}

int64_t Tiers::dropped() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return dropped_;
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
      try {
        fetch_all(fetch);
        note_folder();
      } catch (const std::bad_alloc&) {
        // What has come has come.
      }
      lock.lock();
      fetched_until_ = fetch.number;
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
  if (options_.store.put != nullptr)
    for (const StagedBlock& block : blocks) put(block);
  if (folder_ == nullptr) return;
  folder_->scan();
  // Other processes may have written the same.
  const auto there = [&](const StagedBlock& block) { return folder_->has(block.name); };
  blocks.erase(std::remove_if(blocks.begin(), blocks.end(), there), blocks.end());
  if (!blocks.empty() && !folder_->write(blocks.data(), blocks.size())) ++folder_failures_;
}

// "NAME.kv": the key, and the group.
std::string Tiers::object_name(const BlockName& name) const {
  return to_hex(name.key.data(), name.key.size()) + "-" + std::to_string(name.group) + ".kv";
}

void Tiers::put(const StagedBlock& block) {
  const std::string name = object_name(block.name);
  std::vector<uint8_t> object = tier_header(layout_, &block, 1);
  object.insert(object.end(), block.data.get(), block.data.get() + block.bytes);
  const auto bytes = static_cast<int64_t>(object.size());
  const dhlo_store& store = options_.store;
  const bool ok = fenced([&] { return store.put(store.ctx, name.c_str(), object.data(), bytes); }, int32_t{-1}) == 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ok) ++store_stats_.failures;
  if (!ok) return;
  ++store_stats_.blocks;
  store_stats_.bytes += bytes;
}

bool Tiers::from_store(const BlockName& name, StagedBlock* block) {
  const dhlo_store& store = options_.store;
  if (store.get == nullptr) return false;
  const std::string object = object_name(name);
  const int64_t expected = tier_header_bytes(1) + block->bytes;
  std::vector<uint8_t> data(static_cast<size_t>(expected));
  const int64_t got = fenced([&] { return store.get(store.ctx, object.c_str(), data.data(), expected); }, int64_t{-1});
  if (got < 0) return false;
  std::vector<TierEntry> entries;
  bool right = got == expected && tier_header_bytes(layout_, data.data()) == expected - block->bytes;
  if (right) {
    const std::vector<uint8_t> header(data.begin(), data.end() - block->bytes);
    right = read_tier_header(layout_, header, expected, &entries) && entries.size() == 1 && entries[0].name == name;
  }
  if (right) {
    std::memcpy(block->data.get(), data.data() + entries[0].offset, static_cast<size_t>(block->bytes));
    right = sha256(block->data.get(), static_cast<size_t>(block->bytes)) == entries[0].digest;
  }
  if (!right && store.remove != nullptr) fenced([&] { return store.remove(store.ctx, object.c_str()), 0; }, 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++(right ? store_stats_.hits : store_stats_.failures);
  return right;
}

bool Tiers::from_queue(const BlockName& name, StagedBlock* block) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(to_write_.begin(), to_write_.end(), [&](const StagedBlock& each) { return each.name == name; });
  if (found == to_write_.end()) return false;
  std::memcpy(block->data.get(), found->data.get(), static_cast<size_t>(block->bytes));
  return true;
}

StagedBlock Tiers::find(const BlockName& name) {
  StagedBlock block = make_block(name, layout_.block_bytes[static_cast<size_t>(name.group)]);
  if (from_queue(name, &block)) return block;
  if (folder_ != nullptr && folder_->read(name, block.data.get())) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++folder_stats_.hits;
    return block;
  }
  if (from_store(name, &block)) return block;
  return {};
}

void Tiers::fetch_all(const Fetch& fetch) {
  if (folder_ != nullptr) folder_->scan();
  bool goes_on = true;
  for (size_t i = 0; i < fetch.keys.size() && goes_on; ++i) {
    for (size_t group = 0; group < layout_.block_bytes.size() && goes_on; ++group) {
      const BlockName name{fetch.keys[i], static_cast<int64_t>(group)};
      if (has(name)) continue;
      StagedBlock block = find(name);
      if (block.data == nullptr)
        goes_on = !needed_[group];
      else
        goes_on = add_fetched(std::move(block), fetch.number);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    goes_on = goes_on && !ends_;
  }
  if (folder_ != nullptr) folder_->mark_used();
}

// What earlier fetches brought and nobody took goes for it, not what it follows. False if there is no room.
bool Tiers::add_fetched(StagedBlock block, int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
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

}  // namespace dhlo::serve
