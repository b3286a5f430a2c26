// Trees of drafts beside what their parents say, one by one: which keys are hidden, which drafts are left, what is learned.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>
#include <vector>

#include "cache_checks.hpp"
#include "draft_growth.hpp"
#include "tree.hpp"

using dhlo::serve::Draft;
using dhlo::serve::DraftGrowth;
using dhlo::serve::DraftOdds;
using dhlo::serve::kMostTree;
using dhlo::serve::TreeWalk;

namespace {

std::set<int64_t> way(const std::vector<Draft>& drafts, int64_t i) {
  std::set<int64_t> seen;
  for (; i >= 0; i = drafts[static_cast<size_t>(i)].parent) seen.insert(i);
  return seen;
}

void test_walk() {
  Random random{1};
  for (int round = 0; round < 300; ++round) {
    const bool chain = round % 3 == 0;
    std::vector<Draft> drafts;
    TreeWalk walk;
    for (int64_t i = 0; i < (chain ? 80 : kMostTree); ++i) {
      const bool follows = chain || random.below(3) != 0;
      drafts.push_back({7, static_cast<int32_t>(follows ? i - 1 : random.below(i + 1) - 1)});
      const TreeWalk::Place place = walk.next(drafts.back());
      const std::set<int64_t> seen = way(drafts, i);
      CHECK(place.depth == static_cast<int64_t>(seen.size()));
      for (int64_t bit = 0; bit < 32; ++bit) {  // of the key before its own that is so far away
        const int64_t other = i - 32 + bit;
        const bool hidden = (static_cast<uint32_t>(place.hidden) >> bit & 1) != 0;
        CHECK(hidden == (other >= 0 && seen.count(other) == 0));
      }
    }
  }
}

// What a small model says of all texts of few tokens: any number of followers, the likeliest first.
struct Said {
  uint64_t seed;
  std::vector<DraftGrowth::Follower> behind(const std::vector<int32_t>& text) const {
    uint64_t hash = seed;
    for (const int32_t token : text) hash = mixed(hash, static_cast<uint64_t>(token));
    Random random{hash};
    std::vector<DraftGrowth::Follower> all;
    float left = 1;
    for (int32_t rank = 0; rank < 4; ++rank) {
      const float share = left * static_cast<float>(random.below(8)) / 8;
      all.push_back({rank, static_cast<size_t>(rank), share, share});
      left -= share;
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.odds > b.odds; });
    return all;
  }
};

struct Grown {
  std::vector<Draft> drafts;
  std::vector<float> values;
};

// Grown as a draft model does it; `values` are looked up again by each draft's text.
Grown grown(DraftGrowth& growth, const Said& said, int64_t most, int64_t width) {
  growth.start(most);
  std::vector<std::vector<int32_t>> texts;  // of computed drafts
  auto add = [&](int64_t computed, const std::vector<int32_t>& text) {
    for (const auto& follower : said.behind(text)) growth.add(computed, follower);
  };
  add(-1, {});
  growth.prune();
  while (const int64_t more = growth.expand(width)) {
    const dhlo::serve::Drafts computed = growth.computed();
    CHECK(static_cast<int64_t>(computed.size()) <= most && more <= width);
    for (size_t i = computed.size() - static_cast<size_t>(more); i < computed.size(); ++i) {
      CHECK(computed[i].parent < static_cast<int32_t>(i));
      std::vector<int32_t> text;
      if (computed[i].parent >= 0) text = texts[static_cast<size_t>(computed[i].parent)];
      text.push_back(computed[i].token);
      CHECK(growth.depth(static_cast<int64_t>(i)) == static_cast<int64_t>(text.size()));
      texts.push_back(text);
    }
    for (size_t i = texts.size() - static_cast<size_t>(more); i < texts.size(); ++i)
      add(static_cast<int64_t>(i), texts[i]);
    growth.prune();
  }
  Grown all;
  all.drafts.resize(static_cast<size_t>(most));
  all.drafts.resize(static_cast<size_t>(growth.write(all.drafts.data())));
  std::vector<std::vector<int32_t>> own;
  for (size_t i = 0; i < all.drafts.size(); ++i) {
    const Draft& draft = all.drafts[i];
    CHECK(draft.parent < static_cast<int32_t>(i));
    std::vector<int32_t> text = draft.parent < 0 ? std::vector<int32_t>() : own[static_cast<size_t>(draft.parent)];
    float value = draft.parent < 0 ? 1 : all.values[static_cast<size_t>(draft.parent)];
    for (const auto& follower : said.behind(text))
      if (follower.token == draft.token) value *= follower.odds;
    text.push_back(draft.token);
    CHECK(std::count(own.begin(), own.end(), text) == 0);
    const int32_t place = growth.place(static_cast<int32_t>(i));
    CHECK(place < 0 || texts[static_cast<size_t>(place)] == text);
    own.push_back(text);
    all.values.push_back(value);
  }
  return all;
}

// The likeliest of all texts, found by going through them.
std::vector<float> likeliest(const Said& said, int64_t most) {
  std::vector<float> values;
  std::vector<std::pair<std::vector<int32_t>, float>> level = {{{}, 1.f}};
  for (int depth = 0; depth < 6; ++depth) {
    std::vector<std::pair<std::vector<int32_t>, float>> next;
    for (const auto& [text, value] : level)
      for (const auto& follower : said.behind(text)) {
        std::vector<int32_t> longer = text;
        longer.push_back(follower.token);
        values.push_back(value * follower.odds);
        if (values.back() > 0.01) next.emplace_back(longer, values.back());
      }
    level = next;
  }
  std::sort(values.begin(), values.end(), std::greater<>());
  values.resize(static_cast<size_t>(most));
  return values;
}

void test_growth() {
  DraftGrowth growth;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Said said{seed};
    const int64_t most = 1 + static_cast<int64_t>(seed % 6);
    Grown all = grown(growth, said, most, 1 + static_cast<int64_t>(seed % 4));
    const std::vector<float> want = likeliest(said, most);
    std::vector<float> got = all.values;
    std::sort(got.begin(), got.end(), std::greater<>());
    CHECK(static_cast<int64_t>(got.size()) == most);
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) < 1e-5);
    double tokens = 1;
    for (const float value : got) tokens += value;
    CHECK(std::abs(growth.tokens() - tokens) < 1e-5);
    // Of which as many are left as give most for their time.
    const double price = 0.02 + 0.05 * static_cast<double>(seed % 5);
    size_t best = 1;
    double most_speed = 0, sum = 1;
    for (size_t n = 1; n <= got.size(); ++n) {
      sum += got[n - 1];
      const double speed = sum / (1 + price * static_cast<double>(n));
      if (speed > most_speed) most_speed = speed, best = n;
    }
    growth.choose([&](int64_t n) { return price * static_cast<double>(n); });
    CHECK(growth.size() == best);
    std::vector<Draft> left(growth.size());
    growth.write(left.data());
    for (size_t i = 0; i < left.size(); ++i) CHECK(left[i].parent < static_cast<int32_t>(i));
  }
}

// Odds come to what became of drafts, of each rank and probability by itself.
void test_odds() {
  DraftOdds odds;
  Random random{5};
  CHECK(odds.of(0, 0.95f) > 0.85f && odds.of(0, 0.05f) < 0.1f && odds.of(9, 0.f) == odds.of(3, 0.f));
  for (int i = 0; i < 3000; ++i) {
    odds.learn(0, 0.35f, random.below(10) < 8);
    odds.learn(1, 0.35f, random.below(10) < 1);
  }
  CHECK(std::abs(odds.of(0, 0.35f) - 0.8f) < 0.12f && std::abs(odds.of(1, 0.35f) - 0.1f) < 0.1f);
  CHECK(odds.of(2, 0.35f) < 0.4f && std::abs(odds.of_first() - 0.8f) < 0.12f);
  // A tree teaches of what followed its right way alone.
  DraftGrowth growth;
  DraftOdds taught;
  growth.start(3);
  growth.add(-1, {1, 0, 0.65f, 0.65f});
  growth.add(-1, {2, 1, 0.15f, 0.15f});
  growth.prune();
  CHECK(growth.expand(1) == 1);
  growth.add(0, {3, 0, 0.75f, 0.75f});
  growth.prune();
  const float first = taught.of(0, 0.65f), second = taught.of(1, 0.15f), third = taught.of(0, 0.75f);
  const std::vector<int32_t> path = {1};
  growth.learn({path.data(), path.size()}, taught);
  CHECK(taught.of(0, 0.65f) < first && taught.of(1, 0.15f) > second && taught.of(0, 0.75f) == third);
}

}  // namespace

int main() {
  test_walk();
  test_growth();
  test_odds();
  if (failures == 0) std::printf("all passed\n");
  return failures != 0;
}
