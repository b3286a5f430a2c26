// What the tests of the cache share.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache.hpp"
#include "checks.hpp"

// Operations that succeed before one that allocates fails, on this thread; below 0: none does.
extern thread_local int64_t allocations_left;

using dhlo::serve::Cache;
using dhlo::serve::CacheOptions;
using dhlo::serve::Sequence;
using dhlo::serve::SwappedSequence;
using dhlo::serve::Tokens;

inline Tokens view(const std::vector<int32_t>& tokens) { return {tokens.data(), tokens.size()}; }

inline uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
  x ^= x >> 31;
  return x * 0x94D049BB133111EBu;
}

// Random numbers of a seed.
struct Random {
  uint64_t state;
  int64_t below(int64_t bound) {
    state = mixed(state, 0x1234567);
    return static_cast<int64_t>((state >> 11) % static_cast<uint64_t>(bound));
  }
};

inline CacheOptions small_options(int64_t blocks, int64_t slots = 4, std::vector<int64_t> windows = {0}) {
  CacheOptions options;
  options.block_slots = slots;
  options.num_blocks = blocks;
  options.windows = std::move(windows);
  for (int64_t group = 0; group < static_cast<int64_t>(options.windows.size()); ++group) {
    options.pools.push_back({2, 4, group});
    options.pools.push_back({1, 12, group});
  }
  return options;
}

// A new folder, removed with its files in the end.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/dhlo-tiers-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { remove(); }
  const std::string& path() const { return path_; }
  std::vector<std::string> files() const {
    std::vector<std::string> all;
    if (DIR* dir = opendir(path_.c_str())) {
      while (const dirent* entry = readdir(dir))
        if (entry->d_name[0] != '.') all.push_back(path_ + "/" + entry->d_name);
      closedir(dir);
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    struct stat status{};
    for (const std::string& file : files())
      if (stat(file.c_str(), &status) == 0) sum += status.st_size;
    return sum;
  }
  void remove() {
    for (const std::string& file : files()) ::remove(file.c_str());
    rmdir(path_.c_str());
  }

 private:
  std::string path_;
};

// What a model would write: a slot of a head depends on all tokens up to it, and on the salt.
class Content {
 public:
  Content(const CacheOptions& options, Cache& cache) : options_(options), cache_(cache) {}

  // Hashes of the beginnings of `tokens`, of 1, 2, ... tokens.
  static std::vector<uint64_t> hashes(const std::vector<int32_t>& tokens, const std::string& salt) {
    std::vector<uint64_t> all;
    uint64_t hash = 17;
    for (const char c : salt) hash = mixed(hash, static_cast<uint64_t>(c));
    for (const int32_t token : tokens) all.push_back(hash = mixed(hash, static_cast<uint32_t>(token)));
    return all;
  }
  void write(const Sequence& sequence, int64_t position, uint64_t hash) {
    each(sequence, position, [&](uint8_t* data, size_t bytes, uint64_t place) {
      for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(mixed(hash, place + i));
    });
  }
  // Whether all that the token behind `size` tokens sees is there.
  bool holds(const Sequence& sequence, const std::vector<uint64_t>& hashes, int64_t size) {
    bool right = true;
    for (int64_t position = 0; position < size; ++position)
      each(sequence, position, [&](const uint8_t* data, size_t bytes, uint64_t place) {
        const int64_t window = options_.windows[place >> 40];
        if (window > 0 && position <= size - window) return;
        for (size_t i = 0; i < bytes; ++i)
          right = right && data[i] == static_cast<uint8_t>(mixed(hashes[static_cast<size_t>(position)], place + i));
      });
    return right;
  }

 private:
  template <class Visit>
  void each(const Sequence& sequence, int64_t position, Visit&& visit) {
    for (size_t p = 0; p < options_.pools.size(); ++p) {
      const auto& pool = options_.pools[p];
      const int64_t slot = cache_.slot(sequence, pool.group, position);
      const int64_t slots = options_.num_blocks * options_.block_slots;
      CHECK(slot >= 0 && slot < slots);
      for (int64_t head = 0; head < pool.heads; ++head)
        visit(static_cast<uint8_t*>(cache_.pool(static_cast<int64_t>(p))) + (head * slots + slot) * pool.depth_bytes,
              static_cast<size_t>(pool.depth_bytes),
              static_cast<uint64_t>(pool.group) << 40 | p << 20 | static_cast<uint64_t>(head) << 8);
    }
  }

  const CacheOptions& options_;
  Cache& cache_;
};

// Blocks in files and in the host's store.
void test_tiers();
// Random operations beside a naive record of what each sequence holds.
void test_cache_by_model(uint64_t seed, int64_t operations);
