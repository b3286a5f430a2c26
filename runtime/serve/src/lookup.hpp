// Drafts by prompt lookup (Saxena 2023): what followed the last time that a sequence said the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dhlo::serve {

class PromptLookup {
 public:
  // Appends to `drafts` what may follow `tokens`, `most` tokens at most; returns how many. Tokens are those of the last
  // call and others behind them.
  int64_t draft(const std::vector<int32_t>& tokens, int64_t most, std::vector<int32_t>& drafts) {
    if (most < 1 || tokens.size() < kGram + 1) return 0;
    index(tokens);
    const int32_t at = slots_[slot(tokens.data() + tokens.size() - kGram)];
    if (at < 0 || !std::equal(tokens.end() - kGram, tokens.end(), tokens.begin() + at)) return 0;
    const size_t from = static_cast<size_t>(at) + kGram;
    const size_t count = std::min(static_cast<size_t>(most), tokens.size() - from);
    drafts.insert(drafts.end(), tokens.begin() + static_cast<std::ptrdiff_t>(from),
                  tokens.begin() + static_cast<std::ptrdiff_t>(from + count));
    return static_cast<int64_t>(count);
  }

 private:
  static constexpr size_t kGram = 3;

  size_t slot(const int32_t* gram) const {
    uint64_t hash = 0;
    for (size_t i = 0; i < kGram; ++i) hash = (hash ^ static_cast<uint32_t>(gram[i])) * 0x9E3779B97F4A7C15ull;
    return static_cast<size_t>(hash >> 32) & (slots_.size() - 1);
  }
  // Notes where each gram was last, but for the one at the end.
  void index(const std::vector<int32_t>& tokens) {
    if (slots_.size() < 2 * tokens.size()) {
      size_t size = std::max<size_t>(slots_.size(), 256);
      while (size < 4 * tokens.size()) size *= 2;
      slots_.assign(size, -1);
      indexed_ = 0;
    }
    for (; indexed_ + kGram < tokens.size(); ++indexed_)
      slots_[slot(tokens.data() + indexed_)] = static_cast<int32_t>(indexed_);
  }

  std::vector<int32_t> slots_;  // by hash: where the gram begins, -1: nowhere
  size_t indexed_ = 0;
};

}  // namespace dhlo::serve
