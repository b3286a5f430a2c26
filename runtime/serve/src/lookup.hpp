// Drafts by prompt lookup (Saxena 2023): what followed the last time that a sequence said the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dhlo::serve {

class PromptLookup {
 public:
  // Appends to `drafts` what may follow `tokens`, `most` tokens at most; returns how many. `price`: what a token more
  // in a step takes, as a part of the time of a token. Tokens are those of the last call and others behind them.
  int64_t draft(const std::vector<int32_t>& tokens, int64_t most, double price, std::vector<int32_t>& drafts) {
    if (most < 1 || tokens.size() < kGram + 1) return 0;
    const int64_t length = worth(most, price);
    if (length == 0) return 0;
    index(tokens);
    const int32_t at = slots_[slot(tokens.data() + tokens.size() - kGram)];
    if (at < 0 || !std::equal(tokens.end() - kGram, tokens.end(), tokens.begin() + at)) return 0;
    const size_t from = static_cast<size_t>(at) + kGram;
    const size_t count = std::min(static_cast<size_t>(length), tokens.size() - from);
    drafts.insert(drafts.end(), tokens.begin() + static_cast<std::ptrdiff_t>(from),
                  tokens.begin() + static_cast<std::ptrdiff_t>(from + count));
    return static_cast<int64_t>(count);
  }

  // What became of a draft.
  void learn(int64_t drafted, int64_t accepted) {
    const auto tried = static_cast<double>(std::min(accepted + 1, drafted));
    const double weight = 1 - std::pow(kKeep, tried);
    accepts_ += weight * (static_cast<double>(accepted) / tried - accepts_);
    if (accepted > 0) {
      pause_ = kFirstPause;
    } else {
      pause_ = std::min(pause_ * 2, kLongestPause);
    }
    waited_ = 0;
  }

 private:
  static constexpr size_t kGram = 3;
  static constexpr int64_t kFirstPause = 16, kLongestPause = 1024;
  static constexpr double kKeep = 0.8;

  // How long a draft pays: as long as the next token of it is accepted more often than it costs. Where none does, a
  // token is tried now and then.
  int64_t worth(int64_t most, double price) {
    int64_t length = 0;
    for (double chance = accepts_; length < most && chance > price; chance *= accepts_) ++length;
    if (length > 0) return length;
    if (++waited_ < pause_) return 0;
    return 1;
  }
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
  double accepts_ = 0.5;  // how often a token of a draft is the right one
  int64_t waited_ = 0, pause_ = kFirstPause;
};

}  // namespace dhlo::serve
