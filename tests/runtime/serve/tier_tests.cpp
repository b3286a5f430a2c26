// Tiers: blocks that come back from files and the host's store, and what happens where those are damaged, slow or gone.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "cache_checks.hpp"

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// A store of the host's that may do anything wrong.
struct Store {
  enum Mode { kRight, kThrows, kRefuses, kFlips, kShort, kLong, kSwaps } mode = kRight;
  std::map<std::string, std::string> objects;
  std::mutex mutex;
  int64_t removed = 0, threads = 1;

  dhlo_store hooks() {
    return {this,
            [](void* ctx, const char* name, const void* data, int64_t bytes) {
              auto* self = static_cast<Store*>(ctx);
              const std::lock_guard<std::mutex> lock(self->mutex);
              if (self->mode == kThrows) throw std::runtime_error("put");
              if (self->mode == kRefuses) return int32_t{1};
              self->objects[name] = std::string(static_cast<const char*>(data), static_cast<size_t>(bytes));
              return int32_t{0};
            },
            [](void* ctx, const char* name, void* data, int64_t bytes) {
              auto* self = static_cast<Store*>(ctx);
              const std::lock_guard<std::mutex> lock(self->mutex);
              if (self->mode == kThrows) throw 1;
              auto found = self->objects.find(name);
              if (self->mode == kRefuses || found == self->objects.end()) return int64_t{-1};
              if (self->mode == kSwaps)
                found = found == self->objects.begin() ? std::prev(self->objects.end()) : std::prev(found);
              std::string object = found->second;
              if (self->mode == kFlips)
                object[object.size() * 2 / 3] = static_cast<char>(object[object.size() * 2 / 3] ^ 4);
              if (self->mode == kShort) object.resize(object.size() / 2);
              object.copy(static_cast<char*>(data), static_cast<size_t>(bytes));
              return self->mode == kLong ? INT64_MAX : static_cast<int64_t>(object.size());
            },
            [](void* ctx, const char*) {
              auto* self = static_cast<Store*>(ctx);
              const std::lock_guard<std::mutex> lock(self->mutex);
              ++self->removed;
            },
            threads};
  }
};

CacheOptions folder_options(const Folder& folder, int64_t blocks, std::vector<int64_t> windows = {0}) {
  CacheOptions options = small_options(blocks, 4, std::move(windows));
  options.tiers.folder = folder.path();
  options.tiers.folder_bytes = 1 << 20;
  return options;
}

// A cache whose sequences' contents are written and checked.
class Server {
 public:
  explicit Server(const CacheOptions& options) : options_(options) {
    auto made = Cache::create(options_);
    CHECK(made.ok());
    cache_ = std::move(made.value());
  }
  Cache& cache() { return *cache_; }
  // Waits for what comes of the prompt, computes the rest. How many tokens were known.
  int64_t serve(const std::vector<int32_t>& prompt, const std::string& salt = "") {
    Content content(options_, *cache_);
    const int64_t fetch = cache_->prefetch(view(prompt), salt);
    for (int i = 0; i < 20000 && !cache_->prefetched(fetch); ++i)
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    CHECK(cache_->prefetched(fetch));
    Sequence sequence = cache_->begin(view(prompt), salt);
    const auto hashes = Content::hashes(prompt, salt);
    const int64_t cached = sequence.cached();
    CHECK(content.holds(sequence, hashes, cached));
    CHECK(cache_->reserve(sequence, static_cast<int64_t>(prompt.size())));
    for (size_t i = static_cast<size_t>(cached); i < prompt.size(); ++i)
      content.write(sequence, static_cast<int64_t>(i), hashes[i]);
    cache_->commit(sequence, view(prompt));
    return cached;
  }

 private:
  const CacheOptions options_;
  std::unique_ptr<Cache> cache_;
};

std::vector<int32_t> prompt_of(int64_t count, int32_t first) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}

constexpr int64_t kFlush = int64_t{20} * 1000000000;

void test_folder() {
  const Folder folder;
  for (const std::vector<int64_t>& windows : {std::vector<int64_t>{0}, {0, 8}, {8}}) {
    CacheOptions options = folder_options(folder, 64, windows);
    {
      Server first(options);
      CHECK(first.serve(prompt_of(41, 0)) == 0);
      CHECK(first.serve(prompt_of(41, 0), "tenant") == 0);
      CHECK(first.cache().flush(kFlush));
      CHECK(first.cache().stats().folder.blocks >= 20 && first.cache().stats().folder.failures == 0);
    }
    Server second(options);  // what was written is there after a restart
    CHECK(second.serve(prompt_of(41, 0)) == 40);
    CHECK(second.cache().stats().folder.hits >= 10);
    CHECK(second.serve(prompt_of(41, 0), "other") == 0);
    CHECK(second.cache().prefetch(view(prompt_of(41, 0)), "") == 0);  // it is here by now
    options.seed[31] = 1;                                             // another model
    Server third(options);
    CHECK(third.serve(prompt_of(41, 0)) == 0);
  }
  // What is evicted comes back.
  Server small(folder_options(folder, 16));
  for (int32_t i = 0; i < 8; ++i) small.serve(prompt_of(41, 1000 * i));
  CHECK(small.cache().flush(kFlush));
  int64_t known = 0;
  for (int32_t i = 0; i < 8; ++i) known += small.serve(prompt_of(41, 1000 * i));
  CHECK(known == 8 * 40);
}

void test_folder_is_bounded() {
  const Folder folder;
  CacheOptions options = folder_options(folder, 32);
  options.tiers.folder_bytes = 16 << 10;
  Server server(options), other(options);
  for (int32_t i = 0; i < 60; ++i) {
    server.serve(prompt_of(60, 1000 * i));
    CHECK(server.cache().flush(kFlush));
    CHECK(folder.bytes() <= options.tiers.folder_bytes);
  }
  CHECK(folder.bytes() > options.tiers.folder_bytes / 2);
  CHECK(other.serve(prompt_of(60, 59000)) == 56 && other.serve(prompt_of(60, 0)) == 0);
  options.tiers.folder_bytes = 10;  // less than any file
  Server none(options);
  none.serve(prompt_of(60, 0));
  CHECK(none.cache().flush(kFlush) && none.cache().stats().folder.failures > 0);
}

void test_damaged_files() {
  const std::vector<int32_t> prompt = prompt_of(81, 0);
  for (int way = 0; way < 8; ++way) {
    const Folder folder;
    const CacheOptions options = folder_options(folder, 64);
    {
      Server server(options);
      server.serve(prompt);
      CHECK(server.cache().flush(kFlush));
      server.serve(prompt_of(30, 7000));
    }
    const std::vector<std::string> files = folder.files();
    CHECK(files.size() >= 2);
    Server late(options);  // knows of the files, if it was fast
    Random random{static_cast<uint64_t>(way)};
    for (const std::string& file : files) {
      std::string text = read_file(file);
      const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(text.size())));
      switch (way) {
        case 0: write_file(file, text.substr(0, at)); break;
        case 1: write_file(file, ""); break;
        case 2:
          text[at] = static_cast<char>(text[at] ^ 16);
          write_file(file, text);
          break;
        case 3:
          text[text.size() - 5] = static_cast<char>(text[text.size() - 5] + 1);
          write_file(file, text);
          break;
        case 4: write_file(file, read_file(files.front())); break;  // all the same
        case 5: ::remove(file.c_str()); break;
        case 6:
          ::remove(file.c_str());
          mkdir(file.c_str(), 0700);
          break;
        default: ::remove(file.c_str()); CHECK(symlink("/dev/zero", file.c_str()) == 0);
      }
    }
    CHECK(late.serve(prompt) <= 80);  // contents are checked
    Server fresh(options);
    const int64_t known = fresh.serve(prompt);
    CHECK(way == 2 || way == 3 || way == 4 || known == 0 || late.cache().stats().folder.blocks > 0);
    CHECK(fresh.cache().flush(kFlush));
  }
}

void test_folders_that_fail() {
  const Folder folder;
  write_file(folder.path() + "/file", "x");
  for (const std::string& path : {folder.path() + "/file/below", folder.path() + "/file", std::string("/proc/none")}) {
    CacheOptions options = folder_options(folder, 16);
    options.tiers.folder = path;
    Server server(options);
    for (int32_t i = 0; i < 4; ++i) CHECK(server.serve(prompt_of(41, 1000 * i)) == 0);
    CHECK(server.cache().flush(kFlush) && server.cache().stats().folder.failures > 0);
  }
  {  // removed while it is in use
    Folder gone;
    Server server(folder_options(gone, 16));
    for (int32_t i = 0; i < 4; ++i) server.serve(prompt_of(41, 1000 * i));
    CHECK(server.cache().flush(kFlush));
    gone.remove();
    server.serve(prompt_of(41, 0));
    for (int32_t i = 4; i < 8; ++i) server.serve(prompt_of(41, 1000 * i));
    CHECK(server.cache().flush(kFlush) && !gone.files().empty());  // and made again
  }
  {  // full
    Folder full;
    struct rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {100, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    Server server(folder_options(full, 16));
    for (int32_t i = 0; i < 4; ++i) CHECK(server.serve(prompt_of(41, 1000 * i)) == 0);
    CHECK(server.cache().flush(kFlush) && server.cache().stats().folder.failures > 0 && full.bytes() == 0);
    setrlimit(RLIMIT_FSIZE, &before);
  }
  CacheOptions options = folder_options(folder, 16);
  options.tiers.folder_bytes = 0;
  CHECK(Cache::create(options).status() == DHLO_INVALID_ARGUMENT);
  options = folder_options(folder, 16);
  options.tiers.staging_bytes = 0;  // nothing may be on its way
  Server server(options);
  for (int32_t i = 0; i < 4; ++i) CHECK(server.serve(prompt_of(41, 1000 * i)) == 0);
  CHECK(server.cache().flush(kFlush) && server.cache().stats().folder.dropped > 0);
}

void test_store() {
  const std::vector<int32_t> prompt = prompt_of(41, 0);
  for (const Store::Mode mode :
       {Store::kRight, Store::kThrows, Store::kRefuses, Store::kFlips, Store::kShort, Store::kLong, Store::kSwaps}) {
    Store store;
    store.threads = mode % 2 == 0 ? 1 : 4;
    CacheOptions options = small_options(64);
    options.tiers.store = store.hooks();
    {
      Server server(options);
      server.serve(prompt);
      CHECK(server.cache().flush(kFlush) && server.cache().stats().store.blocks == 10);
    }
    {
      const std::lock_guard<std::mutex> lock(store.mutex);
      store.mode = mode;
    }
    Server server(options);
    CHECK(server.serve(prompt) == (mode == Store::kRight ? 40 : 0));
    CHECK(server.serve(prompt_of(41, 500)) == 0);
    CHECK(server.cache().flush(kFlush));
    const auto stats = server.cache().stats().store;
    CHECK(mode == Store::kRight ? stats.hits == 10 && stats.failures == 0 : stats.hits == 0 && stats.failures > 0);
    CHECK((store.removed > 0) == (mode >= Store::kFlips));
  }
}

// Blocks go to both; the store is asked for what the folder lacks, which it has from then on.
void test_store_behind_folder() {
  const std::vector<int32_t> prompt = prompt_of(81, 0);
  Store store;
  store.threads = 3;
  CacheOptions options;
  for (const bool lost : {false, true}) {
    const Folder folder;
    options = folder_options(folder, 64, {0, 8});
    options.tiers.store = store.hooks();
    for (int i = 0; i < 2; ++i) {
      Server server(options);
      CHECK(server.serve(prompt) == (i == 0 && !lost ? 0 : 80));
      CHECK(server.cache().flush(kFlush));
      const auto stats = server.cache().stats();
      CHECK(stats.folder.failures == 0 && stats.store.failures == 0);
      CHECK((stats.store.hits > 0) == (i == 0 && lost) && (stats.folder.hits > 0) == (i == 1));
      CHECK(stats.folder.blocks >= 20);
    }
  }
}

// One that fails is left alone after some calls, and asked again later; the folder doesn't wait for it.
void test_store_rests() {
  Store store;
  CacheOptions options = small_options(64);
  options.tiers.store = store.hooks();
  Server server(options);
  store.mode = Store::kRefuses;
  for (int32_t i = 0; i < 6; ++i) server.serve(prompt_of(41, 1000 * i));
  CHECK(server.cache().flush(kFlush));
  auto stats = server.cache().stats().store;
  CHECK(stats.failures >= 3 && stats.blocks == 0 && stats.dropped > 0);
  {
    const std::lock_guard<std::mutex> lock(store.mutex);
    store.mode = Store::kRight;
  }
  for (int32_t i = 6; stats.blocks == 0 && i < 600; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    server.serve(prompt_of(41, 1000 * i));
    server.cache().flush(kFlush);
    stats = server.cache().stats().store;
  }
  CHECK(stats.blocks > 0);
}

// Several on one folder that is too small for them.
void test_shared_folder() {
  const Folder folder;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&folder, t] {
      CacheOptions options = folder_options(folder, 24);
      options.tiers.folder_bytes = 48 << 10;
      options.tiers.flush_ns = 0;
      Server server(options);
      Random random{t};
      for (int i = 0; i < 60; ++i)
        server.serve(prompt_of(20 + random.below(60), static_cast<int32_t>(1000 * random.below(6))));
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void test_tiers() {
  test_folder();
  test_folder_is_bounded();
  test_damaged_files();
  test_folders_that_fail();
  test_store();
  test_store_behind_folder();
  test_store_rests();
  test_shared_folder();
}
