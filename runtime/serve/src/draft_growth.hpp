// Which drafts of a small model are verified: those that it holds most likely, as a tree (Li et al. 2024).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tree.hpp"

namespace dhlo::serve {

// How often tokens are right that a small model holds likely, learned from what became of them: which of those that may
// follow a token one is, and what the model gives it, tell that.
class DraftOdds {
 public:
  DraftOdds() {
    for (Odds& odds : odds_)
      for (size_t i = 0; i < odds.size(); ++i) odds[i] = {kLimits[i], kGuesses};
  }
  // Of the token of so much probability that is the `rank`-th likeliest behind another, from 0 on.
  float of(size_t rank, float probability) const { return odds_[row(rank)][column(probability)].rate; }
  // Of the likeliest one behind any.
  float of_first() const { return first_.rate; }
  void learn(size_t rank, float probability, bool right) {
    odds_[row(rank)][column(probability)].learn(right);
    if (rank == 0) first_.learn(right);
  }

 private:
  static constexpr size_t kRanks = 4, kColumns = 12;
  static constexpr std::array<float, kColumns> kLimits{0.97f, 0.9f, 0.8f, 0.7f, 0.6f,  0.5f,
                                                       0.4f,  0.3f, 0.2f, 0.1f, 0.04f, 0.01f};
  static constexpr float kGuesses = 4, kMost = 256;  // what isn't known yet counts as so many; older ones weigh less
  struct Rate {
    float rate, seen;
    void learn(bool right) {
      seen = std::min(seen + 1, kMost);
      rate += ((right ? 1.f : 0.f) - rate) / seen;
    }
  };
  using Odds = std::array<Rate, kColumns>;

  static size_t row(size_t rank) { return std::min(rank, kRanks - 1); }
  static size_t column(float probability) {
    size_t i = 0;
    while (i + 1 < kColumns && probability < kLimits[i]) ++i;
    return i;
  }

  std::array<Odds, kRanks> odds_;
  Rate first_{0.5f, kGuesses};
};

// The drafts of one sequence in the making. What may follow a draft is known once the model has computed it: those
// that are computed have numbers of their own, in that order, which is that of their keys in its cache.
class DraftGrowth {
 public:
  void start(int64_t most) {
    most_ = static_cast<size_t>(most);
    nodes_.clear();
    computed_.clear();
  }
  size_t size() const { return nodes_.size(); }
  // Those that are computed, or are to be.
  Drafts computed() const { return {computed_.data(), computed_.size()}; }
  // Tokens behind the sequence's last one, of a computed draft; 0 of that.
  int64_t depth(int64_t computed) const {
    int64_t depth = 0;
    for (; computed >= 0; computed = computed_[static_cast<size_t>(computed)].parent) ++depth;
    return depth;
  }

  // What may follow a computed draft (-1: the sequence's last token): the likeliest such token first, and as often as
  // it is right of those.
  struct Follower {
    int32_t token;
    size_t rank;
    float probability, odds;
  };
  void add(int64_t computed, const Follower& what) {
    const auto parent = std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& x) { return x.place == computed; });
    if (computed >= 0 && parent == nodes_.end()) return;  // others have turned out to be likelier
    const float before = computed < 0 ? 1 : parent->value;
    nodes_.push_back({what.token, computed < 0 ? -1 : static_cast<int32_t>(parent - nodes_.begin()), -1,
                      before * what.odds, what.rank, what.probability});
  }
  // Leaves the likeliest of all. No draft is likelier than the one that it follows, so that one is left as well.
  void prune() { leave(most_); }
  // Leaves as many as give most tokens for the time, one at least. `cost(n)`: of so many, over that of a step without.
  template <class Cost>
  void choose(const Cost& cost) {
    sort();
    double tokens = 1, best = 0;
    size_t count = 0;
    for (size_t n = 1; n <= order_.size(); ++n) {
      tokens += order_[n - 1];
      const double speed = tokens / (1 + cost(static_cast<int64_t>(n)));
      if (speed > best) best = speed, count = n;
    }
    leave(count);
  }
  // How many tokens are expected of a step that verifies them all.
  double tokens() const {
    double tokens = 1;
    for (const Node& node : nodes_) tokens += node.value;
    return tokens;
  }
  // How likely the next to be computed is right; 0: there is none.
  float next() {
    const auto best = likeliest();
    return best == nodes_.end() || computed_.size() >= most_ ? 0 : best->value;
  }
  // Those to compute next, `most` or fewer: the likeliest that may be followed by one that is left, and others that are
  // about as likely. Returns how many there are.
  int64_t expand(int64_t most) {
    most = std::min(most, static_cast<int64_t>(most_ - std::min(most_, computed_.size())));
    int64_t count = 0;
    float first = 0;
    for (; count < most; ++count) {
      const auto best = likeliest();
      if (best == nodes_.end() || best->value < kAsLikely * first) break;
      if (count == 0) first = best->value;
      best->place = static_cast<int32_t>(computed_.size());
      const int32_t parent = best->parent;
      computed_.push_back({best->token, parent < 0 ? -1 : nodes_[static_cast<size_t>(parent)].place});
    }
    return count;
  }
  // All drafts, each behind the one that it follows.
  int64_t write(Draft* to) const {
    for (const Node& node : nodes_) *to++ = {node.token, node.parent};
    return static_cast<int64_t>(nodes_.size());
  }
  // What became of the drafts: those of `path` were right.
  void learn(Span<const int32_t> path, DraftOdds& odds) const {
    int32_t before = -1;
    for (size_t k = 0; k <= path.size(); ++k) {
      for (size_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].parent == before)
          odds.learn(nodes_[i].rank, nodes_[i].probability, k < path.size() && path[k] == static_cast<int32_t>(i));
      if (k < path.size()) before = path[k];
    }
  }
  // The number of a draft among those that are computed, -1: it isn't.
  int32_t place(int32_t draft) const { return nodes_[static_cast<size_t>(draft)].place; }

 private:
  static constexpr float kAsLikely = 0.5;
  struct Node {
    int32_t token, parent, place;
    float value;  // how likely it is what the sequence goes on with
    size_t rank;
    float probability;
  };

  // Values, the greatest first.
  void sort() {
    order_.clear();
    for (const Node& node : nodes_) order_.push_back(node.value);
    std::sort(order_.begin(), order_.end(), std::greater<>());
  }
  void leave(size_t count) {
    if (nodes_.size() <= count) return;
    if (count == 0) return nodes_.clear();
    sort();
    const float least = order_[count - 1];
    auto equal =
        static_cast<size_t>(std::count(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count), least));
    moved_.assign(nodes_.size(), -1);
    size_t kept = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node node = nodes_[i];
      if (node.value < least || (node.value == least && equal == 0)) continue;
      if (node.value == least) --equal;
      if (node.parent >= 0) node.parent = moved_[static_cast<size_t>(node.parent)];
      moved_[i] = static_cast<int32_t>(kept);
      nodes_[kept++] = node;
    }
    nodes_.resize(kept);
  }
  // Of those that aren't computed; none if nothing that follows it would be left.
  std::vector<Node>::iterator likeliest() {
    auto best = nodes_.end();
    size_t unlikelier = 0;
    for (auto at = nodes_.begin(); at != nodes_.end(); ++at)
      if (at->place < 0 && (best == nodes_.end() || at->value > best->value)) best = at;
    if (best == nodes_.end() || nodes_.size() < most_) return best;
    for (const Node& node : nodes_) unlikelier += node.value < best->value ? 1 : 0;
    return unlikelier > 0 ? best : nodes_.end();
  }

  size_t most_ = 0;
  std::vector<Node> nodes_;
  std::vector<Draft> computed_;
  std::vector<float> order_;
  std::vector<int32_t> moved_;
};

}  // namespace dhlo::serve
