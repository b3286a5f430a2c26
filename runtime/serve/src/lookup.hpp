// Drafts by prompt lookup (Saxena 2023): what followed when a sequence said the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dhlo::serve {

class PromptLookup {
 public:
  // By how many tokens are the same: the more, the likelier goes on what follows.
  static constexpr size_t kKinds = 4;
  struct Match {
    size_t from = 0;  // of what followed; 0: there was nothing
    size_t kind = 0;
  };

  // Where the most tokens before the end were the same, of the last times that some were. Tokens are those of the last
  // call and others behind them.
  Match find(const std::vector<int32_t>& tokens) {
    Match found;
    if (tokens.size() < kGram + 1) return found;
    index(tokens);
    size_t longest = kGram - 1;
    int32_t at = slots_[slot(tokens.data() + tokens.size() - kGram)];
    for (size_t tried = 0; at >= 0 && tried < kTried && longest < kLongest;
         ++tried, at = before_[static_cast<size_t>(at)]) {
      const size_t end = static_cast<size_t>(at) + kGram, most = std::min(end, kLongest);
      size_t same = 0;
      while (same < most && tokens[end - 1 - same] == tokens[tokens.size() - 1 - same]) ++same;
      if (same <= longest) continue;
      longest = same;
      found = {end, same < 3 ? 0u : same < 5 ? 1u : same < 10 ? 2u : 3u};
    }
    return found;
  }

 private:
  static constexpr size_t kGram = 2, kTried = 16, kLongest = 24;

  size_t slot(const int32_t* gram) const {
    uint64_t hash = 0;
    for (size_t i = 0; i < kGram; ++i) hash = (hash ^ static_cast<uint32_t>(gram[i])) * 0x9E3779B97F4A7C15ull;
    return static_cast<size_t>(hash >> 32) & (slots_.size() - 1);
  }
  // Notes where each gram was last, and where before that, but for the one at the end.
  void index(const std::vector<int32_t>& tokens) {
    if (slots_.size() < 2 * tokens.size()) {
      size_t size = std::max<size_t>(slots_.size(), 256);
      while (size < 4 * tokens.size()) size *= 2;
      slots_.assign(size, -1);
      before_.clear();
      before_.reserve(size);
    }
    while (before_.size() + kGram < tokens.size()) {
      const auto at = static_cast<int32_t>(before_.size());
      int32_t& last = slots_[slot(tokens.data() + at)];
      before_.push_back(last);
      last = at;
    }
  }

  std::vector<int32_t> slots_;   // by hash: where the gram was last, -1: nowhere
  std::vector<int32_t> before_;  // of each place: the one before with the same hash
};

}  // namespace dhlo::serve
