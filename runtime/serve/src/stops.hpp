// Stop strings: found in the bytes of tokens as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dhlo::serve {

// The bytes of each token.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(const char* bytes, const int64_t* offsets, int64_t size)
      : offsets_(offsets, offsets + size + 1), bytes_(bytes, bytes + offsets[size]) {}
  bool empty() const { return offsets_.empty(); }
  int64_t size() const { return empty() ? 0 : static_cast<int64_t>(offsets_.size()) - 1; }
  const char* begin(int32_t token) const { return bytes_.data() + offset(token); }
  const char* end(int32_t token) const { return bytes_.data() + offset(token + 1); }

 private:
  // Tokens behind those that were given have no bytes.
  int64_t offset(int64_t token) const {
    return token < size() ? offsets_[static_cast<size_t>(token)] : offsets_.back();
  }

  std::vector<int64_t> offsets_;
  std::vector<char> bytes_;
};

// A stop string, with the table of Knuth, Morris and Pratt: of each beginning, how long the longest shorter beginning
// is that it ends with.
class StopString {
 public:
  explicit StopString(std::string text) : text_(std::move(text)), borders_(text_.size() + 1, 0) {
    for (size_t i = 1, k = 0; i < text_.size(); ++i) {
      while (k > 0 && text_[i] != text_[k]) k = borders_[k];
      if (text_[i] == text_[k]) ++k;
      borders_[i + 1] = k;
    }
  }
  size_t size() const { return text_.size(); }
  // How much of it the bytes end with, if they ended with `matched` of it before `byte`.
  size_t next(size_t matched, char byte) const {
    while (matched > 0 && (matched == text_.size() || text_[matched] != byte)) matched = borders_[matched];
    return text_[matched] == byte ? matched + 1 : 0;
  }

 private:
  std::string text_;
  std::vector<size_t> borders_;
};

// How far a choice's bytes have come with each stop string, and which tokens must wait: those with a byte that a stop
// string may begin with.
class StopState {
 public:
  // Takes the next token. Which stop string it completes, of several that end with the same byte the longest; -1: none.
  int32_t take(const std::vector<StopString>& stops, const Vocabulary& vocabulary, int32_t token) {
    matched_.resize(stops.size(), 0);
    int32_t found = -1;
    size_t longest = 0;
    for (const char* at = vocabulary.begin(token); at != vocabulary.end(token) && found < 0; ++at) {
      longest = 0;
      for (size_t i = 0; i < stops.size(); ++i) {
        matched_[i] = stops[i].next(matched_[i], *at);
        if (matched_[i] == stops[i].size() && (found < 0 || stops[i].size() > stops[static_cast<size_t>(found)].size()))
          found = static_cast<int32_t>(i);
        if (matched_[i] > longest) longest = matched_[i];
      }
    }
    const auto bytes = static_cast<size_t>(vocabulary.end(token) - vocabulary.begin(token));
    if (bytes != 0) longest_ = longest;
    held_.push_back(bytes);
    size_t held_bytes = 0;
    for (const size_t b : held_) held_bytes += b;
    size_t free = 0;
    while (free < held_.size() && held_bytes - held_[free] >= longest_) held_bytes -= held_[free++];
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(free));
    return found;
  }
  // Tokens, the last ones, that wait.
  size_t held() const { return held_.size(); }

 private:
  std::vector<size_t> matched_;  // of each stop string
  size_t longest_ = 0;           // of these
  std::vector<size_t> held_;     // bytes of the tokens that wait
};

}  // namespace dhlo::serve
