// Blocks by what they hold: SHA-256 of a block's tokens and of the key of the block before it.
#pragma once

#include <cstdint>
#include <string_view>

#include "pages.hpp"
#include "sha256.hpp"
#include "span.hpp"

namespace dhlo::serve {

// The key that the first block of a sequence follows: of a model, and of a salt that callers share blocks under.
Digest root_key(const Digest& model, std::string_view salt) noexcept;
// The key of a block of `tokens` behind that of `before`. Linear in the tokens, allocates nothing.
Digest block_key(const Digest& before, Tokens tokens) noexcept;

// Which block of a group has a key: a hash table with open addressing for a fixed number of blocks. All in O(1).
class PrefixIndex {
 public:
  // `hash_bits`: of the keys, those that choose where a block is looked for first.
  bool create(int64_t blocks, int hash_bits = 64) noexcept;
  // The block of this key, -1 if none has it.
  int32_t find(const Digest& key) const noexcept;
  // The block has no key, and no block this one.
  void insert(int32_t block, const Digest& key) noexcept;
  // The block has a key.
  void erase(int32_t block) noexcept;
  bool has_key(int32_t block) const noexcept { return entries_[block].known; }
  const Digest& key(int32_t block) const noexcept { return entries_[block].key; }

 private:
  struct Entry {
    Digest key;
    bool known;
  };

  uint64_t home(const Digest& key) const noexcept;

  PageArray<Entry> entries_;   // by block
  PageArray<uint32_t> slots_;  // a block's number + 1; 0: free
  uint64_t mask_ = 0, hash_mask_ = 0;
};

}  // namespace dhlo::serve
