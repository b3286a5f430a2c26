// The form that blocks have outside memory: some of them behind a header that says which, and their digests.
#include "tier_file.hpp"

#include <algorithm>

namespace dhlo::serve {
namespace {

constexpr char kMagic[8] = {'d', 'h', 'l', 'o', 'k', 'v', '1', '\n'};

// magic, model, count; `count` entries; SHA-256 of all before.
struct Prefix {
  char magic[8];
  Digest model;
  int64_t count;
};
struct Entry {
  Digest key;
  int64_t group, offset, bytes;
  Digest digest;
};
static_assert(sizeof(Prefix) == kTierPrefix && sizeof(Entry) == 88, "no padding");

}  // namespace

int64_t tier_header_bytes(int64_t count) {
  return static_cast<int64_t>(sizeof(Prefix) + sizeof(Digest)) + count * static_cast<int64_t>(sizeof(Entry));
}

std::vector<uint8_t> tier_header(const TierLayout& layout, const StagedBlock* blocks, size_t count) {
  std::vector<uint8_t> header(static_cast<size_t>(tier_header_bytes(static_cast<int64_t>(count))));
  Prefix prefix{};
  std::memcpy(prefix.magic, kMagic, sizeof kMagic);
  prefix.model = layout.model;
  prefix.count = static_cast<int64_t>(count);
  std::memcpy(header.data(), &prefix, sizeof prefix);
  auto offset = static_cast<int64_t>(header.size());
  for (size_t i = 0; i < count; ++i) {
    const StagedBlock& block = blocks[i];
    const Digest digest = sha256(block.data.get(), static_cast<size_t>(block.bytes));
    const Entry entry = {block.name.key, block.name.group, offset, block.bytes, digest};
    std::memcpy(header.data() + sizeof prefix + i * sizeof entry, &entry, sizeof entry);
    offset += block.bytes;
  }
  const size_t signed_bytes = header.size() - sizeof(Digest);
  const Digest digest = sha256(header.data(), signed_bytes);
  std::memcpy(header.data() + signed_bytes, digest.data(), digest.size());
  return header;
}

int64_t tier_header_bytes(const TierLayout& layout, const uint8_t* begin) {
  Prefix prefix;
  std::memcpy(&prefix, begin, sizeof prefix);
  if (std::memcmp(prefix.magic, kMagic, sizeof kMagic) != 0 || prefix.model != layout.model) return -1;
  return prefix.count < 1 || prefix.count > kMostTierEntries ? -1 : tier_header_bytes(prefix.count);
}

bool read_tier_header(const TierLayout& layout, const std::vector<uint8_t>& header, int64_t file_bytes,
                      std::vector<TierEntry>* entries) {
  const size_t signed_bytes = header.size() - sizeof(Digest);
  const Digest digest = sha256(header.data(), signed_bytes);
  if (std::memcmp(header.data() + signed_bytes, digest.data(), digest.size()) != 0) return false;
  entries->clear();
  for (size_t at = sizeof(Prefix); at < signed_bytes; at += sizeof(Entry)) {
    Entry entry;
    std::memcpy(&entry, header.data() + at, sizeof entry);
    const auto groups = static_cast<int64_t>(layout.block_bytes.size());
    if (entry.group < 0 || entry.group >= groups) return false;
    if (entry.bytes != layout.block_bytes[static_cast<size_t>(entry.group)]) return false;
    if (entry.offset < static_cast<int64_t>(header.size()) || entry.offset > file_bytes - entry.bytes) return false;
    entries->push_back({{entry.key, entry.group}, entry.offset, entry.bytes, entry.digest});
  }
  return true;
}

}  // namespace dhlo::serve
