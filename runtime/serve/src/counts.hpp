// How often tokens occur in a prompt and in what follows, for penalties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dhlo::serve {

// A hash table with open addressing over the tokens that occur.
class TokenCounts {
 public:
  struct Entry {
    int32_t token;
    int32_t made;  // how often it was made; 0: it occurs in the prompt only
  };

  void add(int32_t token, bool made) {
    if (entries_.size() * 2 >= slots_.size()) grow();
    int32_t& slot = find(token);
    if (slot < 0) {
      entries_.push_back({token, 0});
      slot = static_cast<int32_t>(entries_.size()) - 1;
    }
    if (made) ++entries_[static_cast<size_t>(slot)].made;
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  int32_t& find(int32_t token) {
    const size_t mask = slots_.size() - 1;
    size_t at = static_cast<uint32_t>(token) * 0x9E3779B1u & mask;
    while (slots_[at] >= 0 && entries_[static_cast<size_t>(slots_[at])].token != token) at = (at + 1) & mask;
    return slots_[at];
  }
  void grow() {
    slots_.assign(slots_.empty() ? 64 : slots_.size() * 2, -1);
    for (size_t i = 0; i < entries_.size(); ++i) find(entries_[i].token) = static_cast<int32_t>(i);
  }

  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;  // indices of entries, -1: free
};

}  // namespace dhlo::serve
