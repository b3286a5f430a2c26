// A host whose memory lies between pages that can't be touched, and that says what a crash touched: for tests/fuzz.
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "dhlo/runtime.h"

namespace {

constexpr size_t kPage = 4096;
constexpr unsigned char kPad = 0xA5;
// What fresh memory holds: NaN in every float type, so that a read of what nobody wrote shows in the results.
constexpr unsigned char kFresh = 0xFF;
constexpr size_t kFilled = size_t{1} << 20;
constexpr int64_t kIntact = INT64_MIN;

struct Block {
  unsigned char* data;
  size_t bytes;
  char label[24];
};

std::mutex lock;
Block blocks[4096];  // of fixed size: the signal handler reads it
size_t num_blocks;
int64_t live_bytes, damaged_blocks;
unsigned placements;
char* note_text;
size_t note_bytes;

uintptr_t page_below(uintptr_t x) { return x & ~(kPage - 1); }
uintptr_t page_above(uintptr_t x) { return page_below(x + kPage - 1); }
uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// First damaged byte of the pads between the block and the pages around it, relative to the block.
int64_t damage(const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  const auto* begin = reinterpret_cast<const unsigned char*>(page_below(address(p)));
  const auto* end = reinterpret_cast<const unsigned char*>(page_above(address(p) + bytes));
  for (const auto* q = begin; q < p; ++q)
    if (*q != kPad) return q - p;
  for (const auto* q = p + bytes; q < end; ++q)
    if (*q != kPad) return q - p;
  return kIntact;
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (note_text != nullptr) {
    const auto at = reinterpret_cast<const unsigned char*>(info->si_addr);
    const auto* machine = static_cast<const ucontext_t*>(context);
    const char* label = "nothing that is known";
    int64_t distance = INT64_MAX, from_end = 0;
    bool write = false;
#if defined(__x86_64__)
    write = (machine->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)machine;
#endif
    for (size_t i = 0; i < num_blocks; ++i) {
      const int64_t before = blocks[i].data - at, after = at - (blocks[i].data + blocks[i].bytes);
      const int64_t far = before > 0 ? before : after >= 0 ? after : 0;
      if (far < distance) {
        distance = far;
        label = blocks[i].label;
        from_end = before > 0 ? -before : after;
      }
    }
    if (distance > (1 << 20)) label = "nothing that is known";
    const size_t used = strnlen(note_text, note_bytes);
    std::snprintf(note_text + used, note_bytes - used,
                  "\nsignal %d: a %s of %p; nearest is %s, from its %s %+lld bytes", signal, write ? "write" : "read",
                  info->si_addr, label, from_end < 0 ? "start" : "end", static_cast<long long>(from_end));
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

extern "C" {

// `bytes` aligned to `alignment` whose end, or else start, lies at a page that can't be touched, as far as the alignment
// allows. The other side has such a page behind a pad of at most a page.
__attribute__((visibility("default"))) void* guard_new(size_t bytes, size_t alignment, int at_end, const char* label) {
  const size_t inner = page_above(bytes);
  auto* map = static_cast<unsigned char*>(
      mmap(nullptr, inner + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (map == MAP_FAILED) return nullptr;
  if (inner > 0 && mprotect(map + kPage, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(map, inner + 2 * kPage);
    return nullptr;
  }
  unsigned char* data = map + kPage;
  if (at_end != 0) data += (inner - bytes) & ~(alignment - 1);
  std::memset(data, kFresh, bytes < kFilled ? bytes : kFilled);
  std::memset(map + kPage, kPad, data - (map + kPage));
  std::memset(data + bytes, kPad, map + kPage + inner - (data + bytes));
  const std::lock_guard<std::mutex> hold(lock);
  live_bytes += static_cast<int64_t>(bytes);
  if (num_blocks < sizeof blocks / sizeof *blocks) {
    Block& b = blocks[num_blocks++];
    b.data = data;
    b.bytes = bytes;
    std::snprintf(b.label, sizeof b.label, "%s", label);
  }
  return data;
}

// Where the block's pads were written to, in bytes from its start; INT64_MIN where they weren't.
__attribute__((visibility("default"))) int64_t guard_damage(const void* data, size_t bytes) {
  return damage(data, bytes);
}

__attribute__((visibility("default"))) void guard_delete(void* data, size_t bytes) {
  {
    const std::lock_guard<std::mutex> hold(lock);
    live_bytes -= static_cast<int64_t>(bytes);
    for (size_t i = num_blocks; i-- > 0;) {
      if (blocks[i].data != data) continue;
      blocks[i] = blocks[--num_blocks];
      break;
    }
  }
  const uintptr_t begin = page_below(address(data)) - kPage;
  munmap(reinterpret_cast<void*>(begin), page_above(bytes) + 2 * kPage);
}

__attribute__((visibility("default"))) void guard_read_only(void* data, size_t bytes) {
  const uintptr_t begin = page_below(address(data));
  if (bytes > 0) mprotect(reinterpret_cast<void*>(begin), page_above(address(data) + bytes) - begin, PROT_READ);
}

__attribute__((visibility("default"))) int64_t guard_live_bytes(void) {
  const std::lock_guard<std::mutex> hold(lock);
  return live_bytes;
}

// How many of the runtime's blocks, held or given back since the last call, were written around.
__attribute__((visibility("default"))) int64_t guard_damaged_blocks(void) {
  const std::lock_guard<std::mutex> hold(lock);
  int64_t found = damaged_blocks;
  damaged_blocks = 0;
  for (size_t i = 0; i < num_blocks; ++i) found += damage(blocks[i].data, blocks[i].bytes) != kIntact;
  return found;
}

// From now on a crash adds what it touched to the text.
__attribute__((visibility("default"))) void guard_note(char* text, size_t bytes) {
  note_text = text;
  note_bytes = bytes;
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
}

static void* hook_alloc(void*, size_t bytes, size_t alignment) {
  unsigned turn;
  {
    const std::lock_guard<std::mutex> hold(lock);
    turn = placements++;
  }
  return guard_new(bytes, alignment, turn % 4 != 0, "memory of the session");
}

static void hook_free(void*, void* data, size_t bytes, size_t) {
  if (damage(data, bytes) != kIntact) {
    const std::lock_guard<std::mutex> hold(lock);
    ++damaged_blocks;
  }
  guard_delete(data, bytes);
}

struct Output {
  void* data;
  size_t bytes;
};

// A session, and the outputs that its callback made for the last run.
struct Host {
  dhlo_session* session;
  int64_t cap;
  int at_end;
  size_t alignment;
  std::vector<Output> outputs;
};

static void* give_output(void* ctx, int64_t index, int32_t dtype, int64_t rank, const int64_t* sizes) {
  auto* host = static_cast<Host*>(ctx);
  const int64_t width = dhlo_dtype_bytes(dtype);
  int64_t bytes = width;
  for (int64_t d = 0; d < rank; ++d)
    if (sizes[d] < 0 || __builtin_mul_overflow(bytes, sizes[d], &bytes)) return nullptr;
  if (bytes > host->cap) return nullptr;
  const std::string label = "output " + std::to_string(index);
  const auto align = host->alignment != 0 ? host->alignment : static_cast<size_t>(width);
  void* data = guard_new(static_cast<size_t>(bytes), align, host->at_end, label.c_str());
  if (data != nullptr) host->outputs.push_back({data, static_cast<size_t>(bytes)});
  return data;
}

__attribute__((visibility("default"))) dhlo_model* host_model(const void* descriptor, const void* constants,
                                                              size_t bytes, int64_t threads) {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.num_threads = threads;
  options.allocator.alloc = hook_alloc;
  options.allocator.free = hook_free;
  dhlo_model* model = nullptr;
  const auto* abi = static_cast<const dhlo_abi_model*>(descriptor);
  return dhlo_model_from_descriptor(abi, constants, bytes, nullptr, nullptr, &options, &model) == DHLO_OK ? model
                                                                                                          : nullptr;
}

// `callback`: outputs lie in memory that the callback gives; otherwise the runtime owns those that aren't bound.
__attribute__((visibility("default"))) Host* host_open(dhlo_model* model, int64_t cap, int callback) {
  auto* host = new Host{nullptr, cap, 1, 0, {}};
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.max_bytes = cap;
  if (callback != 0) {
    options.output = give_output;
    options.output_ctx = host;
  }
  if (dhlo_session_create(model, &options, &host->session) == DHLO_OK) return host;
  delete host;
  return nullptr;
}

__attribute__((visibility("default"))) dhlo_session* host_session(Host* host) { return host->session; }

// Where later outputs lie; alignment 0 is that of the elements.
__attribute__((visibility("default"))) void host_place(Host* host, int at_end, size_t alignment) {
  host->at_end = at_end;
  host->alignment = alignment;
}

__attribute__((visibility("default"))) void host_clear(Host* host) {
  for (const Output& out : host->outputs) hook_free(nullptr, out.data, out.bytes, 0);
  host->outputs.clear();
}

__attribute__((visibility("default"))) void host_close(Host* host) {
  host_clear(host);
  dhlo_session_destroy(host->session);
  delete host;
}

}  // extern "C"
