// Blocks by what they hold: SHA-256 of a block's tokens and of the key of the block before it.
#include "prefix.hpp"

#include <algorithm>
#include <cstring>

namespace dhlo::serve {

Digest root_key(const Digest& model, std::string_view salt) noexcept {
  Digest both[2] = {model, sha256(salt.data(), salt.size())};
  return sha256(both, sizeof both);
}

Digest block_key(const Digest& before, Tokens tokens) noexcept {
  // Blocks of more tokens are hashed in pieces, each behind the digest of those before it.
  constexpr size_t kMost = 64;
  struct {
    Digest before;
    int32_t tokens[kMost];
  } piece;
  piece.before = before;
  for (size_t at = 0; at < tokens.size(); at += kMost) {
    const size_t count = std::min(kMost, tokens.size() - at);
    std::memcpy(piece.tokens, tokens.data() + at, count * sizeof(int32_t));
    piece.before = sha256(&piece, sizeof piece.before + count * sizeof(int32_t));
  }
  return piece.before;
}

bool PrefixIndex::create(int64_t blocks, int hash_bits) noexcept {
  uint64_t slots = 2;
  while (slots < 2 * static_cast<uint64_t>(blocks)) slots *= 2;
  mask_ = slots - 1;
  hash_mask_ = hash_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << hash_bits) - 1;
  return entries_.map(blocks) && slots_.map(static_cast<int64_t>(slots));
}

uint64_t PrefixIndex::home(const Digest& key) const noexcept {
  uint64_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof hash);
  return hash & hash_mask_ & mask_;
}

int32_t PrefixIndex::find(const Digest& key) const noexcept {
  for (uint64_t at = home(key);; at = (at + 1) & mask_) {
    const uint32_t slot = slots_[static_cast<int64_t>(at)];
    if (slot == 0) return -1;
    if (entries_[slot - 1].key == key) return static_cast<int32_t>(slot - 1);
  }
}

void PrefixIndex::insert(int32_t block, const Digest& key) noexcept {
  uint64_t at = home(key);
  while (slots_[static_cast<int64_t>(at)] != 0) at = (at + 1) & mask_;
  slots_[static_cast<int64_t>(at)] = static_cast<uint32_t>(block) + 1;
  entries_[block] = {key, true};
}

void PrefixIndex::erase(int32_t block) noexcept {
  uint64_t at = home(entries_[block].key);
  while (slots_[static_cast<int64_t>(at)] != static_cast<uint32_t>(block) + 1) at = (at + 1) & mask_;
  entries_[block].known = false;
  // Those behind it move up, so that no search ends before it should.
  for (uint64_t next = (at + 1) & mask_;; next = (next + 1) & mask_) {
    const uint32_t slot = slots_[static_cast<int64_t>(next)];
    if (slot == 0) break;
    const uint64_t wanted = home(entries_[slot - 1].key);
    if (((next - wanted) & mask_) < ((next - at) & mask_)) continue;
    slots_[static_cast<int64_t>(at)] = slot;
    at = next;
  }
  slots_[static_cast<int64_t>(at)] = 0;
}

}  // namespace dhlo::serve
