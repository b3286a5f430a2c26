// Objects of the host's store, a block each.
#include "tier_store.hpp"

#include <algorithm>
#include <cstring>

#include "boundary.hpp"

namespace dhlo::serve {
namespace {

constexpr int64_t kFailures = 3;  // calls in a row that fail before the store is left alone
constexpr std::chrono::seconds kFirstRest{1}, kLongestRest{32};

}  // namespace

// "NAME.kv": the key, and the group.
std::string TierStore::object_name(const BlockName& name) const {
  return to_hex(name.key.data(), name.key.size()) + "-" + std::to_string(name.group) + ".kv";
}

bool TierStore::rests() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Clock::now() < rests_until_;
}

// What became of a call.
void TierStore::note(bool answered) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (answered) {
    failed_ = 0;
    return;
  }
  ++stats_.failures;
  // Calls that were in work together fail together, and count once.
  if (Clock::now() < rests_until_) return;
  if (++failed_ < kFailures) return;
  const auto rest = kFirstRest * (int64_t{1} << std::min<int64_t>(failed_ - kFailures, 5));
  rests_until_ = Clock::now() + std::min<std::chrono::seconds>(rest, kLongestRest);
}

void TierStore::drop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.dropped;
}

TierStats TierStore::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void TierStore::put(const StagedBlock& block) {
  if (hooks_.put == nullptr) return;
  if (rests()) return drop();
  const std::string name = object_name(block.name);
  std::vector<uint8_t> object = tier_header(layout_, &block, 1);
  object.insert(object.end(), block.data.get(), block.data.get() + block.bytes);
  const auto bytes = static_cast<int64_t>(object.size());
  const bool ok = fenced([&] { return hooks_.put(hooks_.ctx, name.c_str(), object.data(), bytes); }, int32_t{-1}) == 0;
  note(ok);
  if (!ok) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.blocks;
  stats_.bytes += bytes;
}

bool TierStore::get(StagedBlock* block) {
  if (hooks_.get == nullptr || rests()) return false;
  const std::string name = object_name(block->name);
  const int64_t expected = tier_header_bytes(1) + block->bytes;
  std::vector<uint8_t> object(static_cast<size_t>(expected));
  const int64_t got =
      fenced([&] { return hooks_.get(hooks_.ctx, name.c_str(), object.data(), expected); }, int64_t{-2});
  note(got >= -1);
  if (got < 0) return false;
  const bool right = unpack(object, got, block);
  if (!right && hooks_.remove != nullptr) fenced([&] { return hooks_.remove(hooks_.ctx, name.c_str()), 0; }, 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++(right ? stats_.hits : stats_.failures);
  return right;
}

bool TierStore::unpack(const std::vector<uint8_t>& object, int64_t got, StagedBlock* block) const {
  const auto all = static_cast<int64_t>(object.size());
  if (got != all || tier_header_bytes(layout_, object.data()) != all - block->bytes) return false;
  const std::vector<uint8_t> header(object.begin(), object.end() - block->bytes);
  std::vector<TierEntry> entries;
  if (!read_tier_header(layout_, header, all, &entries) || entries.size() != 1 || !(entries[0].name == block->name))
    return false;
  std::memcpy(block->data.get(), object.data() + entries[0].offset, static_cast<size_t>(block->bytes));
  return sha256(block->data.get(), static_cast<size_t>(block->bytes)) == entries[0].digest;
}

}  // namespace dhlo::serve
