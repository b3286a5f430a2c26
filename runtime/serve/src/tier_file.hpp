// The form that blocks have outside memory: some of them behind a header that says which, and their digests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sha256.hpp"

namespace dhlo::serve {

// What a group's block is known by.
struct BlockName {
  Digest key{};
  int64_t group = 0;
  bool operator==(const BlockName& other) const { return group == other.group && key == other.key; }
};

struct BlockNameHash {
  size_t operator()(const BlockName& name) const noexcept {
    size_t hash = 0;
    std::memcpy(&hash, name.key.data(), sizeof hash);
    return hash ^ static_cast<size_t>(name.group);
  }
};

// A block's content on its way.
struct StagedBlock {
  BlockName name;
  int64_t bytes = 0;
  std::unique_ptr<uint8_t[]> data;
  bool in_store = false;  // it came from there
};

// Of blocks of one model.
struct TierLayout {
  Digest model{};
  std::vector<int64_t> block_bytes;  // of each group
};

struct TierEntry {
  BlockName name;
  int64_t offset = 0;
  int64_t bytes = 0;
  Digest digest{};
};

constexpr int64_t kTierPrefix = 48;        // bytes of a header that tell its size
constexpr int64_t kMostTierEntries = 256;  // of a file

// The header of these blocks, which lie behind it one after the other.
std::vector<uint8_t> tier_header(const TierLayout& layout, const StagedBlock* blocks, size_t count);
// The size of the header of so many blocks.
int64_t tier_header_bytes(int64_t count);
// The size of the header that begins like this (kTierPrefix bytes); -1 if none does, or one of another model.
int64_t tier_header_bytes(const TierLayout& layout, const uint8_t* begin);
// What a whole header says of a file of so many bytes. False for one that is damaged.
bool read_tier_header(const TierLayout& layout, const std::vector<uint8_t>& header, int64_t file_bytes,
                      std::vector<TierEntry>* entries);

}  // namespace dhlo::serve
