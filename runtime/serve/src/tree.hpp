// Drafts of what may follow a sequence, as a tree: several may follow the same token (Miao et al. 2024).
#pragma once

#include <array>
#include <cstdint>

#include "span.hpp"

namespace dhlo::serve {

// So many drafts may be a tree, or fewer: as far as a token's number reaches that says what it doesn't see of those
// before it (dhlo_abi_paging.hidden). Drafts that follow one another may be any number.
constexpr int64_t kMostTree = 32;

struct Draft {
  int32_t token;
  int32_t parent;  // the draft that it follows, of those before it; -1: the sequence's last token
};
using Drafts = Span<const Draft>;

// Where in the text each of some drafts is, and what it sees of the others, for all in order.
class TreeWalk {
 public:
  struct Place {
    int64_t depth;   // tokens behind the sequence's last one, from 1 on
    int32_t hidden;  // bits: the 32 keys before its own, that of the draft just before it the highest
  };

  Place next(const Draft& draft) {
    const int64_t i = count_++;
    if (straight_ == i && draft.parent == i - 1) {
      ++straight_;
      return note(i, i + 1, below(i + 1), 0);
    }
    const auto parent = static_cast<size_t>(draft.parent);
    const uint64_t seen = draft.parent < 0 ? 0 : seen_[parent];
    const int64_t depth = draft.parent < 0 ? 1 : depths_[parent] + 1;
    return note(i, depth, seen | uint64_t{1} << i, static_cast<uint32_t>((~seen & below(i)) << (kMostTree - i)));
  }

 private:
  static uint64_t below(int64_t i) { return i < 64 ? (uint64_t{1} << i) - 1 : ~uint64_t{0}; }
  Place note(int64_t i, int64_t depth, uint64_t seen, uint32_t hidden) {
    if (i < kMostTree) {
      depths_[static_cast<size_t>(i)] = depth;
      seen_[static_cast<size_t>(i)] = seen;
    }
    return {depth, static_cast<int32_t>(hidden)};
  }

  int64_t count_ = 0, straight_ = 0;  // the first so many follow one another
  std::array<int64_t, kMostTree> depths_;
  std::array<uint64_t, kMostTree> seen_;  // drafts on the way to each, itself among them
};

}  // namespace dhlo::serve
