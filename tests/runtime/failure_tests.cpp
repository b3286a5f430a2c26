// Allocations that fail at each point in turn, and threads that can't start: every call ends with a clean status, and what
// comes after works.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "checks.hpp"

namespace {

// Requests until the first that fails, and how many fail from then on; nothing fails while it is negative.
std::atomic<int64_t> until_failure{-1};
std::atomic<int64_t> failing{0};
std::atomic<int64_t> failed{0};
std::atomic<int64_t> threads_left{-1};  // that may still start; any number while it is negative

}  // namespace

#if COUNTS_ALLOCATIONS
namespace {

bool fails() {
  if (until_failure.load(std::memory_order_relaxed) < 0) return false;
  if (until_failure.load() > 0 && until_failure.fetch_sub(1) > 1) return false;
  if (failing.load() <= 0 || failing.fetch_sub(1) <= 0) return false;
  ++failed;
  return true;
}

}  // namespace

// Every heap allocation of the process passes here (operator new ends up here, too), as do the runtime's mappings and the
// threads that it starts.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) {
  ++allocations;
  return fails() ? nullptr : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ++allocations;
  return fails() ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  ++allocations;
  return fails() ? nullptr : __libc_realloc(old, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  ++allocations;
  *out = fails() ? nullptr : __libc_memalign(alignment, bytes);
  return *out == nullptr ? 12 : 0;
}
void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  if (fails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* arg) noexcept {
  static auto* const real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.load() >= 0 && threads_left.fetch_sub(1) <= 0) {
    threads_left = 0;  // and not what stands for any number
    return EAGAIN;
  }
  return fails() ? EAGAIN : real(thread, attributes, start, arg);
}
}
#endif

namespace {

// Runs `body(k)` with the k-th request failing, alone or with all after it, for every k until none is left to fail.
template <class Body>
int64_t fail_each(Body body) {
  int64_t points = 0;
  for (const int64_t together : {int64_t{1}, int64_t{1} << 40}) {
    for (int64_t k = 1; k < 100'000; ++k) {
      failed = 0;
      failing = together;
      until_failure = k;
      body();
      until_failure = -1;
      if (failed == 0) break;
      ++points;
    }
  }
  return points;
}

bool clean(dhlo_status status) { return status == DHLO_OK || status == DHLO_OUT_OF_MEMORY; }

void test_loading(const char* file) {
  dhlo_status status = DHLO_OK;
  dhlo_model* model = nullptr;
  const int64_t points = fail_each([&] {
    model = nullptr;
    status = dhlo_model_load_file(file, nullptr, &model);
    until_failure = -1;
    // What the dynamic loader couldn't get it reports as a file that can't be loaded.
    CHECK(clean(status) || status == DHLO_FORMAT || status == DHLO_IO);
    CHECK((status == DHLO_OK) == (model != nullptr));
    dhlo_model_release(model);
  });
  CHECK(points > 20 && status == DHLO_OK);
}

void test_sessions() {
  const dhlo::Model model = make_model_with_threads(3);
  dhlo::Session reference(model);
  Call first(1), call(300'000);  // blocks on the heap and mapped ones
  CHECK(first.run(reference.get()) == DHLO_OK && call.run(reference.get()) == DHLO_OK);
  std::vector<uint8_t> snapshot(reference.snapshot());
  const int64_t points = fail_each([&] {
    dhlo_session *session = nullptr, *copy = nullptr;
    const dhlo_status created = dhlo_session_create(model.get(), nullptr, &session);
    CHECK(clean(created) && (created == DHLO_OK) == (session != nullptr));
    if (session == nullptr) return;
    CHECK(clean(dhlo_session_restore(session, snapshot.data(), static_cast<int64_t>(snapshot.size()))));
    CHECK(clean(first.run(session)));
    CHECK(clean(call.run(session)));
    CHECK(clean(dhlo_session_set_profile(session, 2)));
    dhlo_plan plan{};
    plan.struct_bytes = sizeof plan;
    CHECK(clean(dhlo_model_plan(model.get(), call.views, 2, nullptr, &plan)));
    const dhlo_status copied = dhlo_session_copy(session, nullptr, &copy);
    CHECK(clean(copied) && (copied == DHLO_OK) == (copy != nullptr));
    int64_t step = 0;
    CHECK(clean(dhlo_session_read_state(session, "step", &step, 8)));
    CHECK(dhlo_session_read_state(session, "nothing", &step, 8) != DHLO_OK);
    until_failure = -1;
    CHECK(call.run(session) == DHLO_OK && call.right(session));
    CHECK(first.run(session) == DHLO_OK && first.right(session));
    dhlo_session_destroy(copy);
    dhlo_session_destroy(session);
  });
  CHECK(points > 20);
}

// A pool of which only so many workers come up still does all of the work.
void test_threads_that_do_not_start() {
  for (int64_t started = 0; started < 4; ++started) {
    const dhlo::Model model = make_model_with_threads(20 + started);  // a pool that no other test has started
    dhlo::Session session(model);
    Call call(50'000);
    threads_left = started;
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
    threads_left = -1;
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  }
}

}  // namespace

void test_failures(const char* file) {
#if COUNTS_ALLOCATIONS
  if (file != nullptr) test_loading(file);
  test_sessions();
  test_threads_that_do_not_start();
#else
  static_cast<void>(file);
  static_cast<void>(test_loading);
  static_cast<void>(test_sessions);
  static_cast<void>(test_threads_that_do_not_start);
#endif
}
