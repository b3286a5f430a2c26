// Random operations on a cache beside a naive record of what each sequence holds: contents are written to the pools and
// read from them.
#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "cache_checks.hpp"

namespace {

struct Live {
  Sequence sequence;
  std::vector<int32_t> tokens;  // that are written
  std::string salt;
};

class Model {
 public:
  Model(const CacheOptions& options, uint64_t seed)
      : options_(options),
        random_{seed},
        cache_(std::move(Cache::create(options).value())),
        content_(options_, *cache_) {}

  void step() {
    switch (random_.below(12)) {
      case 0:
      case 1: begin(); break;
      case 2:
        if (!live_.empty()) live_.erase(live_.begin() + random_.below(size()));
        break;
      case 3:
        if (Live* from = any()) fork(*from);
        break;
      case 4:
        if (Live* one = any()) truncate(*one);
        break;
      case 5:
        if (Live* one = any()) draft(*one);
        break;
      case 6: swap(); break;
      case 7:
        if (Live* one = any()) branch(*one);
        break;
      default:
        if (Live* one = any()) extend(*one, 1 + (random_.below(3) == 0 ? random_.below(40) : 0));
    }
    if (Live* one = any()) verify(*one);
    check_counts();
  }
  void finish() {
    for (Live& one : live_) verify(one);
    live_.clear();
    swapped_.clear();
    const auto stats = cache_->stats();
    CHECK(stats.used == 0 && stats.shared == 0 && stats.unused_slots == 0 && stats.swapped_bytes == 0);
    for (int64_t g = 0; g < cache_->num_groups(); ++g) CHECK(cache_->free_blocks(g) == options_.num_blocks);
  }
  int64_t hits() const { return cache_->stats().hit_tokens; }
  int64_t evictions() const { return cache_->stats().evictions; }
  int64_t fetched() const { return cache_->stats().folder.hits; }

 private:
  int64_t size() const { return static_cast<int64_t>(live_.size()); }
  Live* any() { return live_.empty() ? nullptr : &live_[static_cast<size_t>(random_.below(size()))]; }
  // Two tokens only, and in runs, so that beginnings are often the same; some are negative.
  int32_t token() { return random_.below(8) == 0 ? -1 : 5; }

  void begin() {
    if (size() > 12) return;
    std::vector<int32_t> prompt;
    if (!live_.empty() && random_.below(2) == 0) prompt = any()->tokens;
    if (!prompt.empty()) prompt.resize(static_cast<size_t>(random_.below(static_cast<int64_t>(prompt.size())) + 1));
    for (int64_t more = random_.below(20) + 1; more > 0; --more) prompt.push_back(token());
    Live one;
    one.salt = random_.below(3) == 0 ? "other" : "";
    // What of it has come by then is used.
    const int64_t fetch = cache_->prefetch(view(prompt), one.salt);
    if (random_.below(2) == 0)
      for (int i = 0; i < 100 && !cache_->prefetched(fetch); ++i)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    one.sequence = cache_->begin(view(prompt), one.salt);
    CHECK(static_cast<bool>(one.sequence));
    const int64_t cached = one.sequence.cached();
    CHECK(cached % options_.block_slots == 0 && cached < static_cast<int64_t>(prompt.size()));
    CHECK(one.sequence.size() == cached);
    CHECK(content_.holds(one.sequence, Content::hashes(prompt, one.salt), cached));
    one.tokens.assign(prompt.begin(), prompt.begin() + cached);
    // The rest in parts.
    while (one.tokens.size() < prompt.size()) {
      const auto part = std::min<size_t>(prompt.size() - one.tokens.size(), static_cast<size_t>(random_.below(16) + 1));
      std::vector<int32_t> next(prompt.begin() + static_cast<std::ptrdiff_t>(one.tokens.size()),
                                prompt.begin() + static_cast<std::ptrdiff_t>(one.tokens.size() + part));
      if (!append(one, next)) break;
    }
    live_.push_back(std::move(one));
  }
  void extend(Live& one, int64_t count) {
    std::vector<int32_t> next;
    for (; count > 0; --count) next.push_back(token());
    append(one, next);
  }
  bool append(Live& one, const std::vector<int32_t>& next) {
    const int64_t old = one.sequence.size();
    if (!reserve(one, old + static_cast<int64_t>(next.size()))) return false;
    one.tokens.insert(one.tokens.end(), next.begin(), next.end());
    write(one, one.tokens, old);
    cache_->commit(one.sequence, view(one.tokens));
    CHECK(one.sequence.size() == static_cast<int64_t>(one.tokens.size()));
    return true;
  }
  bool reserve(Live& one, int64_t tokens) {
    const int64_t capacity = one.sequence.capacity();
    const bool fits = cache_->reserve(one.sequence, tokens);
    CHECK(fits ? one.sequence.capacity() >= tokens : one.sequence.capacity() == capacity);
    return fits;
  }
  void write(const Live& one, const std::vector<int32_t>& tokens, int64_t from) {
    const std::vector<uint64_t> hashes = Content::hashes(tokens, one.salt);
    for (auto i = static_cast<size_t>(from); i < hashes.size(); ++i)
      content_.write(one.sequence, static_cast<int64_t>(i), hashes[i]);
  }
  // Writes more tokens than are kept.
  void draft(Live& one) {
    std::vector<int32_t> all = one.tokens;
    for (int64_t more = random_.below(9) + 1; more > 0; --more) all.push_back(token());
    if (!reserve(one, static_cast<int64_t>(all.size()))) return;
    write(one, all, one.sequence.size());
    const auto kept = static_cast<int64_t>(one.tokens.size()) +
                      random_.below(static_cast<int64_t>(all.size() - one.tokens.size()) + 1);
    CHECK(cache_->truncate(one.sequence, kept) == kept);
    all.resize(static_cast<size_t>(kept));
    one.tokens = all;
    cache_->commit(one.sequence, view(one.tokens));
  }
  // Writes a tree of tokens, of which those on a way through it are kept.
  void branch(Live& one) {
    const auto end = static_cast<int64_t>(one.tokens.size()), drafts = random_.below(12) + 1;
    if (!reserve(one, end + drafts)) return;
    std::vector<int32_t> way;
    for (int64_t i = 0; i < drafts; ++i) {
      if (random_.below(2) != 0) {
        content_.write(one.sequence, end + i, ~uint64_t{0});
        continue;
      }
      one.tokens.push_back(token());
      way.push_back(static_cast<int32_t>(i));
      content_.write(one.sequence, end + i, Content::hashes(one.tokens, one.salt).back());
    }
    CHECK(cache_->gather(one.sequence, end, view(way)));
    const auto kept = static_cast<int64_t>(one.tokens.size());
    CHECK(cache_->truncate(one.sequence, kept) == kept);
    cache_->commit(one.sequence, view(one.tokens));
    verify(one);
  }
  void truncate(Live& one) {
    const int64_t wanted = random_.below(static_cast<int64_t>(one.tokens.size()) + 1);
    const int64_t kept = cache_->truncate(one.sequence, wanted);
    CHECK(kept == wanted || (kept == 0 && options_.windows.back() > 0));
    CHECK(one.sequence.size() == kept);
    one.tokens.resize(static_cast<size_t>(kept));
  }
  void fork(const Live& from) {
    if (size() > 12) return;
    Live one;
    one.tokens = from.tokens;
    one.salt = from.salt;
    one.sequence = cache_->fork(from.sequence);
    live_.push_back(std::move(one));
  }
  void swap() {
    if (random_.below(2) == 0 && !live_.empty()) {
      const auto at = live_.begin() + random_.below(size());
      Live out = std::move(*at);
      live_.erase(at);
      const int64_t held = out.sequence.size();
      SwappedSequence swapped = cache_->swap_out(out.sequence);
      CHECK(swapped && !out.sequence && swapped.size() == held);
      swapped_.emplace_back(std::move(swapped), std::move(out));
    } else if (!swapped_.empty()) {
      const auto at = swapped_.begin() + random_.below(static_cast<int64_t>(swapped_.size()));
      at->second.sequence = cache_->swap_in(at->first);
      CHECK(static_cast<bool>(at->second.sequence) != static_cast<bool>(at->first));
      if (at->first) return;
      live_.push_back(std::move(at->second));
      swapped_.erase(at);
      verify(live_.back());
    }
  }

  void verify(const Live& one) {
    CHECK(content_.holds(one.sequence, Content::hashes(one.tokens, one.salt), one.sequence.size()));
  }
  void check_counts() {
    const auto stats = cache_->stats();
    int64_t unused = 0;
    for (const Live& one : live_) {
      const int64_t waste = one.sequence.capacity() - one.sequence.size();
      CHECK(waste < options_.block_slots);
      unused += waste;
    }
    CHECK(stats.unused_slots == unused);
    CHECK(stats.used + stats.kept <= stats.blocks && stats.shared <= stats.used);
    if (options_.windows.size() > 1 || options_.windows[0] > 0) return;
    std::set<int32_t> blocks;
    for (const Live& one : live_)
      for (const int32_t block : cache_->table(one.sequence, 0)) blocks.insert(block);
    CHECK(static_cast<int64_t>(blocks.size()) == stats.used);
    CHECK(cache_->free_blocks(0) == options_.num_blocks - stats.used);
  }

  CacheOptions options_;
  Random random_;
  std::unique_ptr<Cache> cache_;
  Content content_;
  std::vector<Live> live_;
  std::vector<std::pair<SwappedSequence, Live>> swapped_;
};

}  // namespace

void test_cache_by_model(uint64_t seed, int64_t operations) {
  Random random{seed};
  static const std::vector<int64_t> windows[] = {{0}, {0, 7}, {9}, {0, 0, 16}};
  int64_t hits = 0, evictions = 0, fetched = 0;
  const Folder folder;
  for (int64_t round = 0; round < 16; ++round) {
    CacheOptions options =
        small_options(1 + random.below(round % 2 == 0 ? 40 : 200), 1 + random.below(6), windows[round % 4]);
    options.prefix = round % 5 != 4;
    options.hash_bits = round % 3 == 0 ? 2 : 64;  // of keys, all bits are compared
    if (options.prefix && round % 4 < 2) {
      options.tiers.folder = folder.path();
      options.tiers.folder_bytes = 300 << 10;
      options.seed[0] = static_cast<uint8_t>(random.below(2));  // some find what others left
    }
    Model model(options, mixed(seed, static_cast<uint64_t>(round)));
    for (int64_t i = 0; i < operations / 16; ++i) model.step();
    model.finish();
    hits += model.hits();
    evictions += model.evictions();
    fetched += model.fetched();
  }
  CHECK(hits > 0 && evictions > 0 && fetched > 0);
}
