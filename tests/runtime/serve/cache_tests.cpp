// The cache of serving: its parts, its limits, and what happens where memory is short.
//
//   cache_tests              all tests
//   cache_tests bench        microseconds of a step of 32 sequences
//   cache_tests seed         the random test with another seed, longer
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

#include "cache_checks.hpp"
#include "dhlo/runtime.hpp"

thread_local int64_t allocations_left = -1;

#if COUNTS_ALLOCATIONS
__attribute__((noinline)) void* operator new(size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  ++allocations;
  void* data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
__attribute__((noinline)) void operator delete(void* data) noexcept { std::free(data); }
__attribute__((noinline)) void operator delete(void* data, size_t) noexcept { std::free(data); }
#endif

namespace {

using namespace dhlo;
using namespace dhlo::serve;

std::unique_ptr<Cache> make_cache(const CacheOptions& options) {
  auto made = Cache::create(options);
  CHECK(made.ok());
  return std::move(made.value());
}

std::vector<int32_t> tokens_of(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}

// A sequence of these tokens, all of them written.
Sequence filled(Cache& cache, const std::vector<int32_t>& tokens, std::string_view salt = "") {
  Sequence sequence = cache.begin(view(tokens), salt);
  CHECK(cache.reserve(sequence, static_cast<int64_t>(tokens.size())));
  cache.commit(sequence, view(tokens));
  return sequence;
}

void test_number_set() {
  Random random{3};
  for (const int64_t bound : {1, 63, 64, 65, 4096, 4097, 300000}) {
    NumberSet numbers;
    CHECK(numbers.create(bound));
    std::set<int64_t> wanted;
    for (int i = 0; i < 2000; ++i) {
      const int64_t n = random.below(bound), from = random.below(bound);
      if (random.below(2) == 0) {
        numbers.add(n);
        wanted.insert(n);
      } else {
        numbers.remove(n);
        wanted.erase(n);
      }
      const auto next = wanted.lower_bound(from);
      CHECK(numbers.next(from) == (next == wanted.end() ? -1 : *next));
      CHECK(numbers.has(n) == (wanted.count(n) == 1));
    }
    CHECK(numbers.next(bound) == -1);
  }
}

void test_prefix_index() {
  for (const int bits : {0, 1, 3, 64}) {  // with 0 all collide
    PrefixIndex index;
    CHECK(index.create(100, bits));
    Random random{7};
    std::vector<bool> known(100, false);
    auto key = [](int32_t block) { return sha256(&block, sizeof block); };
    for (int i = 0; i < 3000; ++i) {
      const auto block = static_cast<int32_t>(random.below(100));
      if (known[static_cast<size_t>(block)])
        index.erase(block);
      else
        index.insert(block, key(block));
      known[static_cast<size_t>(block)] = !known[static_cast<size_t>(block)];
      const auto other = static_cast<int32_t>(random.below(110));
      CHECK(index.find(key(other)) == (other < 100 && known[static_cast<size_t>(other)] ? other : -1));
    }
  }
  // Tokens, what is before them, salt and model: each matters.
  const std::vector<int32_t> tokens = tokens_of(200);
  const Digest model{}, root = root_key(model, "");
  std::set<Digest> keys = {root, root_key(model, "a"), root_key(model, "aa"), root_key(sha256("x", 1), "")};
  for (size_t count = 1; count <= 200; ++count) keys.insert(block_key(root, {tokens.data(), count}));
  keys.insert(block_key(root_key(model, "a"), {tokens.data(), 64}));
  CHECK(keys.size() == 205);
}

void test_options() {
  auto status = [](auto change) {
    CacheOptions options = small_options(8);
    change(options);
    auto made = Cache::create(options);
    CHECK(made.ok() || !made.text().empty());
    return made.status();
  };
  const int64_t huge = int64_t{1} << 62;
  CHECK(status([](CacheOptions&) {}) == DHLO_OK);
  for (const int64_t blocks : {int64_t{0}, int64_t{-1}, INT64_MIN, huge, INT64_MAX})
    CHECK(status([&](CacheOptions& o) { o.num_blocks = blocks; }) == DHLO_INVALID_ARGUMENT);
  CHECK(status([](CacheOptions& o) { o.block_slots = 0; }) == DHLO_INVALID_ARGUMENT);
  CHECK(status([](CacheOptions& o) { o.windows.clear(); }) == DHLO_INVALID_ARGUMENT);
  CHECK(status([](CacheOptions& o) { o.windows[0] = -1; }) == DHLO_INVALID_ARGUMENT);
  CHECK(status([](CacheOptions& o) { o.pools[0].heads = 0; }) == DHLO_INVALID_ARGUMENT);
  CHECK(status([](CacheOptions& o) { o.pools[0].depth_bytes = -4; }) == DHLO_INVALID_ARGUMENT);
  for (const int64_t group : {int64_t{-1}, int64_t{1}, huge})
    CHECK(status([&](CacheOptions& o) { o.pools[0].group = group; }) == DHLO_INVALID_ARGUMENT);
  CHECK(status([&](CacheOptions& o) { o.block_slots = huge; }) == DHLO_OUT_OF_MEMORY);
  CHECK(status([&](CacheOptions& o) { o.pools[1].depth_bytes = huge; }) == DHLO_OUT_OF_MEMORY);
  CHECK(status([&](CacheOptions& o) { o.pools[1].heads = int64_t{1} << 45; }) == DHLO_OUT_OF_MEMORY);
  CHECK(status([&](CacheOptions& o) { o.windows[0] = INT64_MAX; }) == DHLO_OK);
}

void test_one_block() {
  auto cache = make_cache(small_options(1));
  const std::vector<int32_t> tokens = {-1, INT32_MIN, INT32_MAX, 0};
  {
    Sequence one = filled(*cache, tokens), two = cache->begin(view(tokens), "");
    CHECK(two && two.cached() == 0);  // a token is always computed
    CHECK(!cache->reserve(one, 5) && !cache->reserve(two, 1) && one.capacity() == 4);
    for (const int64_t tokens_wanted : {int64_t{1} << 62, INT64_MAX}) CHECK(!cache->reserve(one, tokens_wanted));
    CHECK(cache->reserve(two, 0) && cache->reserve(two, -1) && cache->reserve(two, INT64_MIN));
    CHECK(cache->slot(one, 0, 3) == 3 && cache->slot(one, 0, 4) == -1 && cache->slot(one, 0, -1) == -1);
    Sequence other = cache->fork(one);
    CHECK(cache->truncate(other, 2) == 2);
    CHECK(!cache->reserve(other, 3));  // there is no block to copy to
  }
  CHECK(cache->stats().kept == 1 && cache->free_blocks(0) == 1);
  const Sequence again = filled(*cache, {9});
  CHECK(cache->stats().kept == 0 && cache->stats().evictions == 1);
  Sequence none;
  CHECK(!cache->reserve(none, 1) && cache->truncate(none, 1) == 0 && !cache->fork(none) && !cache->swap_out(none));
  cache->commit(none, view(tokens));
  CHECK(cache->table(none, 0).size() == 0 && cache->slot(none, 0, 0) == -1);
  CHECK(cache->begin({}, "").cached() == 0);
}

void test_prefixes() {
  auto cache = make_cache(small_options(64));
  const std::vector<int32_t> tokens = tokens_of(22);
  {
    const Sequence first = filled(*cache, tokens);
  }
  CHECK(cache->stats().kept == 5);
  auto cached = [&](int64_t count, std::string_view salt = "") {
    return cache->begin({tokens.data(), static_cast<size_t>(count)}, salt).cached();
  };
  CHECK(cached(22) == 20 && cached(21) == 20 && cached(20) == 16 && cached(5) == 4 && cached(4) == 0);
  CHECK(cached(22, "tenant") == 0 && cached(22, std::string_view("\0", 1)) == 0);
  std::vector<int32_t> changed = tokens;
  changed[9] = -7;
  CHECK(cache->begin(view(changed), "").cached() == 8);
  {
    const Sequence theirs = filled(*cache, tokens, "tenant");
  }
  CHECK(cache->stats().kept == 10);

  // Two that compute the same at the same time have the same blocks afterwards.
  const std::vector<int32_t> same = tokens_of(16, 100);
  Sequence one = cache->begin(view(same), ""), two = cache->begin(view(same), "");
  CHECK(cache->reserve(one, 16) && cache->reserve(two, 16) && cache->stats().used == 8);
  cache->commit(one, view(same));
  cache->commit(two, view(same));
  CHECK(cache->stats().used == 4 && cache->stats().shared == 4);
  CHECK(cache->slot(one, 0, 15) == cache->slot(two, 0, 15));

  // Of one model's blocks another knows nothing, nor does one of another layout: keys differ.
  CacheOptions other = small_options(64);
  other.prefix = false;
  auto keeps_none = make_cache(other);
  {
    const Sequence sequence = filled(*keeps_none, tokens);
  }
  CHECK(keeps_none->stats().kept == 0 && keeps_none->begin(view(tokens), "").cached() == 0);
}

void test_eviction_begins_at_ends() {
  auto cache = make_cache(small_options(8));
  const std::vector<int32_t> old = tokens_of(16), recent = tokens_of(12, 50);
  {
    const Sequence one = filled(*cache, old);
  }
  {
    const Sequence two = filled(*cache, recent);
  }
  const Sequence three = filled(*cache, tokens_of(8, 90));  // one is free, one is evicted
  auto cached = [&](std::vector<int32_t> prompt) {
    prompt.push_back(1);
    return cache->begin(view(prompt), "").cached();
  };
  CHECK(cached(old) == 12 && cached(recent) == 12);
  const Sequence four = filled(*cache, tokens_of(8, 190));
  CHECK(cached(old) == 4 && cached(recent) == 12);
}

void test_copy_on_write() {
  const CacheOptions options = small_options(16);
  auto cache = make_cache(options);
  Content content(options, *cache);
  std::vector<int32_t> tokens = tokens_of(6);
  Sequence one = cache->begin(view(tokens), "");
  CHECK(cache->reserve(one, 6));
  const auto hashes = Content::hashes(tokens, "");
  for (int64_t i = 0; i < 6; ++i) content.write(one, i, hashes[static_cast<size_t>(i)]);
  cache->commit(one, view(tokens));
  Sequence two = cache->fork(one);
  CHECK(cache->stats().used == 2 && cache->stats().shared == 2);
  CHECK(cache->reserve(two, 7) && cache->stats().copies == 1);
  CHECK(cache->slot(one, 0, 0) == cache->slot(two, 0, 0) && cache->slot(one, 0, 5) != cache->slot(two, 0, 5));
  content.write(two, 6, 99);
  CHECK(content.holds(one, hashes, 6) && content.holds(two, hashes, 6));
  CHECK(cache->reserve(one, 7) && cache->stats().copies == 1);  // it is alone by now
  // A full block that is written to again isn't what it was.
  const std::vector<int32_t> all = tokens_of(8);
  Sequence three = filled(*cache, all);
  CHECK(cache->truncate(three, 6) == 6 && cache->reserve(three, 7));
  CHECK(cache->begin(view(tokens_of(9)), "").cached() == 4);
}

void test_windows() {
  const CacheOptions options = small_options(16, 4, {0, 8});
  auto cache = make_cache(options);
  const std::vector<int32_t> tokens = tokens_of(41);
  {
    Sequence one = cache->begin(view(tokens), "");
    for (int64_t i = 1; i <= 40; ++i) {
      CHECK(cache->reserve(one, i));
      cache->commit(one, {tokens.data(), static_cast<size_t>(i)});
    }
    // Position 40 sees 33 to 40: blocks 8 and 9 of the group with a window.
    CHECK(cache->stats().used == 10 && cache->free_blocks(0) == 6 && cache->free_blocks(1) == 14);
    CHECK(cache->table(one, 1).size() == 10);
    CHECK(cache->truncate(one, 39) == 39);
    CHECK(cache->reserve(one, 40));
    CHECK(cache->truncate(one, 20) == 0 && one.size() == 0 && one.capacity() == 0);
  }
  CHECK(cache->begin(view(tokens), "").cached() == 36);  // the last block was written to again
  // Blocks behind the window go first, and only beginnings whose windows are whole are known.
  auto narrow = make_cache(small_options(16, 4, {8}));
  {
    const Sequence one = filled(*narrow, tokens_of(40));
  }
  {
    const Sequence two = filled(*narrow, tokens_of(44, 1000));
  }
  CHECK(narrow->stats().evictions > 0);
  CHECK(narrow->begin(view(tokens_of(45, 1000)), "").cached() == 44);
  CHECK(narrow->begin(view(tokens_of(5)), "").cached() == 0);
}

void test_blocks_follow_one_another() {
  auto cache = make_cache(small_options(1024));
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Sequence> sequences;
  for (int32_t i = 0; i < 8; ++i) {
    prompts.push_back(tokens_of(4 * 40, 1000 * i));
    sequences.push_back(cache->begin(view(prompts.back()), ""));
  }
  for (int64_t count = 1; count <= 160; ++count)
    for (Sequence& sequence : sequences) CHECK(cache->reserve(sequence, count));
  for (const Sequence& sequence : sequences) {
    int64_t pieces = 1;
    const auto table = cache->table(sequence, 0);
    for (size_t i = 1; i < table.size(); ++i) pieces += table[i] != table[i - 1] + 1 ? 1 : 0;
    CHECK(pieces <= 3);  // 40 blocks in runs of 16
  }
  sequences.clear();
  // What was given back is given out in runs again.
  auto small = make_cache(small_options(64));
  for (int round = 0; round < 2; ++round) {
    Sequence one = small->begin(view(prompts[0]), ""), two = small->begin(view(prompts[1]), "");
    for (int64_t count = 1; count <= 128; ++count) CHECK(small->reserve(one, count) && small->reserve(two, count));
    const auto table = small->table(one, 0);
    int64_t pieces = 1;
    for (size_t i = 1; i < table.size(); ++i) pieces += table[i] != table[i - 1] + 1 ? 1 : 0;
    CHECK(pieces <= 2);
  }
  // A pool full of kept blocks is given out in runs, too.
  {
    const Sequence all = filled(*cache, tokens_of(4 * 1024, 50000));
  }
  CHECK(cache->stats().kept == 1024);
  Sequence last = cache->begin(view(prompts[0]), "");
  for (int64_t count = 1; count <= 160; ++count) CHECK(cache->reserve(last, count));
  int64_t pieces = 1;
  const auto table = cache->table(last, 0);
  for (size_t i = 1; i < table.size(); ++i) pieces += table[i] != table[i - 1] + 1 ? 1 : 0;
  CHECK(pieces <= 4);
}

#if COUNTS_ALLOCATIONS
void test_allocations() {
  const CacheOptions options = small_options(256);
  auto cache = make_cache(options);
  const std::vector<int32_t> tokens = tokens_of(200);
  // The first time sequences are made; they are used again.
  auto life = [&] {
    Sequence one = filled(*cache, tokens), two = cache->fork(one);
    CHECK(cache->reserve(two, 204));
    cache->truncate(two, 150);
  };
  for (int i = 0; i < 3; ++i) life();
  const int64_t before = allocations;
  for (int i = 0; i < 10; ++i) life();
  CHECK(allocations == before);

  // Each in turn fails: the operation does, or has no effect, and nothing is lost.
  for (int64_t left = 0; left < 60; ++left) {
    allocations_left = left;
    auto made = Cache::create(options);
    allocations_left = -1;
    if (!made.ok()) {
      CHECK(made.status() == DHLO_OUT_OF_MEMORY);
      continue;
    }
    Cache& short_of = *made.value();
    {
      allocations_left = left % 12;
      Sequence one = short_of.begin(view(tokens), "salt");
      if (short_of.reserve(one, 200)) short_of.commit(one, view(tokens));
      Sequence two = short_of.fork(one);
      short_of.reserve(two, 230);
      SwappedSequence out = short_of.swap_out(two);
      Sequence back = short_of.swap_in(out);
      allocations_left = -1;
      CHECK(static_cast<bool>(out) + static_cast<bool>(back) + static_cast<bool>(two) <= 1);
    }
    CHECK(short_of.stats().used == 0 && short_of.stats().swapped_bytes == 0 && short_of.free_blocks(0) == 256);
  }
}
#endif

// Of blocks of 12 layers with 4 heads of 64, none of which was looked at.
void time_norms(int32_t dtype) {
  constexpr int64_t kBlocks = 256;
  CacheOptions options = small_options(kBlocks, 16);
  options.pools.clear();
  for (int64_t layer = 0; layer < 12; ++layer)
    for (const int64_t keys : {int64_t{-1}, 2 * layer})
      options.pools.push_back({4, 64 * dhlo_dtype_bytes(dtype), 0, dtype, keys, -1});
  options.eviction = {kBlocks, 0, 1, true};
  auto cache = make_cache(options);
  for (size_t p = 0; p < options.pools.size(); ++p)
    std::memset(cache->pool(static_cast<int64_t>(p)), 0x33,
                static_cast<size_t>(4 * kBlocks * 16 * options.pools[p].depth_bytes));
  const std::vector<int32_t> tokens = tokens_of(16 * kBlocks);
  Sequence one = cache->begin(view(tokens), "");
  cache->reserve(one, 16 * kBlocks);
  cache->commit(one, view(tokens));
  for (const char* what : {"read", "known"}) {
    const auto begin = std::chrono::steady_clock::now();
    cache->evict(one, 1);
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    std::printf("norms of a block, 12 layers of 4 heads of 64 x %lld bytes, %s: %.2f us\n",
                static_cast<long long>(dhlo_dtype_bytes(dtype)), what, us / kBlocks);
  }
}

void bench() {
  CacheOptions options;
  options.block_slots = 16;
  options.num_blocks = 16384;
  options.windows = {0};
  options.pools = {{8, 128, 0}};
  auto cache = make_cache(options);
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Sequence> sequences;
  const int64_t steps = 4000;
  for (int32_t i = 0; i < 32; ++i) {
    tokens.push_back(tokens_of(steps + 1, 100000 * i));
    sequences.push_back(cache->begin({tokens.back().data(), 1}, ""));
  }
  int64_t sum = 0;
  std::vector<double> times;
  for (int64_t count = 1; count <= steps; ++count) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < 32; ++i) {
      cache->reserve(sequences[i], count);
      sum += cache->slot(sequences[i], 0, count - 1) + cache->table(sequences[i], 0)[0];
    }
    for (size_t i = 0; i < 32; ++i) cache->commit(sequences[i], {tokens[i].data(), static_cast<size_t>(count)});
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  double all = 0, most = 0;
  for (const double time : times) {
    all += time;
    most = time > most ? time : most;
  }
  std::printf("a step of 32 sequences: %.2f us, at most %.1f (sum %lld)\n", all / steps, most,
              static_cast<long long>(sum));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) sum += cache->begin(view(tokens[5]), "").cached();
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / 100;
  std::printf("beginning with 4,000 known tokens: %.1f us\n", us);
  for (const int32_t dtype : {DHLO_F32, DHLO_BF16, DHLO_F16, DHLO_I8}) time_norms(dtype);
}

// Numbers of a block of a head, and what they are stored as.
float stored(std::vector<uint8_t>& out, int32_t dtype, float x) {
  auto put = [&](auto value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof value);
  };
  if (dtype == DHLO_F32) put(x);
  if (dtype == DHLO_I8) put(static_cast<int8_t>(x));
  if (dtype == DHLO_F16) put(dhlo::f16(x));
  if (dtype == DHLO_BF16) put(dhlo::bf16(x));
  return dtype == DHLO_I8 ? std::trunc(x) : x;
}

// Blocks go by the norms of what pools of each dtype hold, but for those that are always kept.
void test_norms(int32_t dtype) {
  constexpr int64_t kSlots = 16, kBlocks = 12, kHeads = 2, kDepth = 8, kMost = 6;
  CacheOptions options = small_options(kBlocks, kSlots);
  const int64_t row = kDepth * dhlo_dtype_bytes(dtype);
  const bool scaled = dtype == DHLO_I8;
  options.pools = {{kHeads, row, 0, dtype, -1, scaled ? 2 : -1}, {kHeads, row, 0, dtype, 0, scaled ? 3 : -1}};
  if (scaled) options.pools.insert(options.pools.end(), 2, {kHeads, 4, 0, DHLO_F32, -1, -1});
  options.eviction = {kMost, 1, 2, true};
  auto cache = make_cache(options);
  Random random{7};
  const std::vector<int32_t> tokens = tokens_of(kSlots * kMost);
  Sequence one = cache->begin(view(tokens), "");
  CHECK(cache->reserve(one, kSlots * kMost));
  std::vector<double> scores(kMost, 0);
  for (int64_t i = 0; i < kSlots * kMost * kHeads; ++i) {
    const int64_t position = i / kHeads, head = i % kHeads;
    const int64_t slot = head * kBlocks * kSlots + cache->slot(one, 0, position);
    double norms[2] = {};
    for (int64_t p = 0; p < 2; ++p) {
      const float scale = scaled ? static_cast<float>(1 + random.below(8)) : 1.0F;
      std::vector<uint8_t> bytes;
      double sum = 0;
      for (int64_t d = 0; d < kDepth; ++d)
        sum += std::pow(scale * stored(bytes, dtype, static_cast<float>(random.below(31) - 15)), 2);
      std::memcpy(static_cast<uint8_t*>(cache->pool(p)) + slot * row, bytes.data(), bytes.size());
      if (scaled) static_cast<float*>(cache->pool(2 + p))[slot] = scale;
      norms[p] = std::sqrt(sum);
    }
    scores[static_cast<size_t>(position / kSlots)] += norms[1] / norms[0];
  }
  cache->commit(one, view(tokens));
  std::vector<int32_t> table(cache->table(one, 0).begin(), cache->table(one, 0).end());
  for (int64_t left = kMost; left > 3; --left) {
    const auto least = std::min_element(scores.begin() + 1, scores.end() - 2) - scores.begin();
    CHECK(cache->evict(one, 1) == 1);
    scores.erase(scores.begin() + least);
    table.erase(table.begin() + least);
    CHECK(std::equal(table.begin(), table.end(), cache->table(one, 0).begin(), cache->table(one, 0).end()));
  }
  CHECK(cache->evict(one, 1) == 0 && cache->stats().evicted_blocks == 3);
}

// A sequence goes on without blocks: its places, what it shares and gives to others, forks, swaps, what it goes back to.
void test_eviction_inside_sequences() {
  CacheOptions options = small_options(20);
  options.eviction = {5, 1, 1, false};
  auto cache = make_cache(options);
  const std::vector<int32_t> tokens = tokens_of(40);
  auto known = [&] { return cache->begin(view(tokens), "").cached(); };
  Sequence one = cache->begin(view(tokens), "");
  CHECK(cache->reserve(one, 20));
  cache->commit(one, view(tokens_of(20)));
  Sequence two = cache->fork(one);
  const std::vector<int32_t> table(cache->table(one, 0).begin(), cache->table(one, 0).end());
  CHECK(cache->evict(one, 9) == 3 && one.size() == 20 && one.evicted() == 12);
  CHECK(cache->evict(one, 1) == 0 && cache->evict(one, INT64_MIN) == 0);
  CHECK(cache->table(one, 0).size() == 2 && cache->table(one, 0)[1] == table[4]);
  CHECK(cache->slot(one, 0, 3) == -1 && cache->slot(one, 0, 17) == table[4] * 4 + 1);
  CHECK(cache->stats().used == 5);  // the other still has them
  CHECK(cache->reserve(one, 30) && one.capacity() == 32);
  cache->commit(one, view(tokens_of(30)));
  CHECK(one.size() == 30 && cache->table(one, 0).size() == 5 && cache->stats().unused_slots == 2);
  two = {};
  CHECK(cache->stats().used == 5 && cache->stats().kept == 3);
  CHECK(known() == 20);  // nothing of what follows from blocks that it has no more
  Sequence three = cache->fork(one);
  CHECK(three.evicted() == 12 && cache->truncate(three, 29) == 29 && cache->table(three, 0).size() == 5);
  CHECK(cache->truncate(three, 17) == 17 && cache->table(three, 0).size() == 2);
  CHECK(cache->truncate(three, 15) == 0 && three.evicted() == 0 && three.capacity() == 0);
  SwappedSequence swapped = cache->swap_out(one);
  CHECK(swapped.size() == 30 && cache->stats().used == 0);
  one = cache->swap_in(swapped);
  CHECK(one.size() == 30 && one.evicted() == 12 && cache->slot(one, 0, 15) == -1 && cache->slot(one, 0, 16) >= 0);
  CHECK(cache->stats().used == 5 && cache->stats().unused_slots == 2);
  one = {};
  CHECK(cache->stats().used == 0 && cache->stats().unused_slots == 0 && known() == 20);
  // No more than what is kept at most, though others know more.
  const std::vector<int32_t> all = tokens_of(24);
  Sequence whole = cache->begin(view(all), "");
  CHECK(cache->reserve(whole, 24));
  cache->commit(whole, view(all));
  CHECK(known() == 20);
  for (const EvictionOptions& wrong :
       {EvictionOptions{2, 1, 1, false}, EvictionOptions{-1, 0, 0, false}, EvictionOptions{21, 1, 1, false},
        EvictionOptions{5, INT64_MAX, INT64_MAX, false}, EvictionOptions{5, 1, 1, true}}) {
    options.eviction = wrong;
    CHECK(!Cache::create(options).ok());
  }
  options = small_options(20, 4, {0, 8});
  options.eviction = {5, 1, 1, false};
  CHECK(!Cache::create(options).ok());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "bench") == 0) {
    bench();
    return 0;
  }
  if (argc > 1) {
    test_cache_by_model(std::strtoull(argv[1], nullptr, 10), 400000);
  } else {
    test_number_set();
    test_prefix_index();
    test_options();
    test_one_block();
    test_prefixes();
    test_eviction_begins_at_ends();
    test_copy_on_write();
    test_windows();
    for (const int32_t dtype : {DHLO_F32, DHLO_BF16, DHLO_F16, DHLO_I8}) test_norms(dtype);
    test_eviction_inside_sequences();
    test_blocks_follow_one_another();
#if COUNTS_ALLOCATIONS
    test_allocations();
#endif
    test_tiers();
    test_cache_by_model(1, 20000);
  }
  if (failures == 0) std::printf("all passed\n");
  return failures == 0 ? 0 : 1;
}
