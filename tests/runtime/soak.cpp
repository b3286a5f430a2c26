// Calls a model from several threads, a session each, in random order over recorded sequences of calls, and checks every result
// and the memory: soak MODEL CALLS_FILE THREADS CALLS. A sequence starts from fresh state. Prints what it measured as JSON.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dhlo/runtime.h"

namespace {

constexpr int kSamples = 20;

struct Value {
  int64_t dtype, rank;
  int64_t sizes[DHLO_ABI_MAX_RANK];
  std::vector<char> bytes;
};

struct Call {
  std::vector<Value> inputs, results;
};

using Sequence = std::vector<Call>;

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

void check(dhlo_status status, const char* what) {
  if (status != DHLO_OK) die(std::string(what) + ": " + dhlo_last_error());
}

int64_t read_number(std::ifstream& file) {
  int64_t x = 0;
  if (!file.read(reinterpret_cast<char*>(&x), sizeof x)) die("the file of calls is cut off");
  return x;
}

std::vector<Value> read_values(std::ifstream& file) {
  std::vector<Value> values(static_cast<size_t>(read_number(file)));
  for (Value& v : values) {
    v.dtype = read_number(file);
    v.rank = read_number(file);
    int64_t bytes = dhlo_dtype_bytes(static_cast<int32_t>(v.dtype));
    for (int64_t d = 0; d < v.rank; ++d) bytes *= v.sizes[d] = read_number(file);
    v.bytes.resize(static_cast<size_t>(bytes));
    file.read(v.bytes.data(), bytes);
  }
  return values;
}

std::vector<Sequence> read_sequences(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Sequence> sequences(static_cast<size_t>(read_number(file)));
  for (Sequence& s : sequences) {
    s.resize(static_cast<size_t>(read_number(file)));
    for (Call& call : s) {
      call.inputs = read_values(file);
      call.results = read_values(file);
    }
  }
  return sequences;
}

// Memory that sessions hold, now and at most, counted where they ask for it.
std::atomic<int64_t> held{0}, peak{0};

void* count_alloc(void*, size_t bytes, size_t alignment) {
  const int64_t now = held += static_cast<int64_t>(bytes);
  for (int64_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
  }
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void count_free(void*, void* data, size_t bytes, size_t) {
  held -= static_cast<int64_t>(bytes);
  std::free(data);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t whole = 0, resident = 0;
  file >> whole >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

template <class T>
bool close(const char* got, const char* want, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T g, w;
    std::memcpy(&g, got + i, sizeof g);
    std::memcpy(&w, want + i, sizeof w);
    if (!(std::abs(g - w) <= T(1e-4) + T(1e-4) * std::abs(w))) return false;
  }
  return true;
}

void compare(dhlo_session* session, int64_t k, const Value& want, const std::string& where) {
  dhlo_tensor got;
  check(dhlo_session_output(session, k, &got), "output");
  bool same = got.dtype == want.dtype && got.rank == want.rank;
  for (int64_t d = 0; same && d < want.rank; ++d) same = got.sizes[d] == want.sizes[d];
  if (!same) die(where + ": dtype or sizes of result " + std::to_string(k));
  const auto* data = static_cast<const char*>(got.data);
  same = want.dtype == DHLO_F32 ? close<float>(data, want.bytes.data(), want.bytes.size())
                                : std::memcmp(data, want.bytes.data(), want.bytes.size()) == 0;
  if (!same) die(where + ": values of result " + std::to_string(k));
}

std::vector<dhlo_tensor> tensors(const Call& call) {
  std::vector<dhlo_tensor> inputs;
  for (const Value& v : call.inputs)
    inputs.push_back({const_cast<char*>(v.bytes.data()), v.sizes, nullptr, static_cast<int32_t>(v.dtype),
                      static_cast<int32_t>(v.rank), static_cast<int64_t>(v.bytes.size())});
  return inputs;
}

void run(dhlo_session* session, const Call& call, const std::string& where) {
  const std::vector<dhlo_tensor> inputs = tensors(call);
  if (dhlo_session_run(session, inputs.data(), static_cast<int64_t>(inputs.size())) != DHLO_OK)
    die(where + ": " + dhlo_session_error(session));
  for (size_t k = 0; k < call.results.size(); ++k) compare(session, static_cast<int64_t>(k), call.results[k], where);
}

// The most that a session needs by the model's plans of all calls.
int64_t planned_bytes(dhlo_model* model, const std::vector<Sequence>& sequences) {
  int64_t arena = 0, scratch = 0, outputs = 0;
  for (const Sequence& s : sequences) {
    for (const Call& call : s) {
      dhlo_plan plan{};
      plan.struct_bytes = sizeof plan;
      const std::vector<dhlo_tensor> inputs = tensors(call);
      check(dhlo_model_plan(model, inputs.data(), static_cast<int64_t>(inputs.size()), nullptr, &plan), "plan");
      if (plan.data_dependent != 0) die("a plan leaves out what depends on data");
      arena = std::max(arena, plan.arena_bytes);
      scratch = std::max(scratch, plan.scratch_bytes);
      outputs = std::max(outputs, plan.output_bytes);
    }
  }
  return arena + scratch + outputs + dhlo_model_state_bytes(model);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) die("soak MODEL CALLS_FILE THREADS CALLS");
  const std::vector<Sequence> sequences = read_sequences(argv[2]);
  const int threads = std::atoi(argv[3]);
  const int64_t calls = std::atoll(argv[4]);
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.num_threads = 2;
  options.allocator.alloc = count_alloc;
  options.allocator.free = count_free;
  dhlo_model* model = nullptr;
  check(dhlo_model_load_file(argv[1], &options, &model), "load");
  const int64_t planned = planned_bytes(model, sequences);
  if (held != 0) die("planning holds memory");

  std::atomic<int64_t> made{0};
  std::atomic<int> ready{0};
  std::mutex lock;
  std::vector<int64_t> resident;
  auto work = [&](int number) {
    std::mt19937_64 random(static_cast<uint64_t>(number));
    dhlo_session* session = nullptr;
    check(dhlo_session_create(model, nullptr, &session), "session");
    for (++ready; ready < threads;) std::this_thread::yield();
    while (made < calls) {
      const size_t s = random() % sequences.size();
      dhlo_session_reset_state(session);
      for (size_t k = 0; k < sequences[s].size(); ++k) {
        run(session, sequences[s][k], "sequence " + std::to_string(s) + ", call " + std::to_string(k));
        const int64_t n = ++made;
        if (n % std::max<int64_t>(calls / kSamples, 1) == 0) {
          const std::lock_guard<std::mutex> hold(lock);
          resident.push_back(resident_bytes());
        }
      }
    }
    dhlo_session_destroy(session);
  };
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) workers.emplace_back(work, t);
  for (std::thread& w : workers) w.join();
  if (held != 0) die("memory is held after the last session's end");
  std::printf("{\"calls\": %lld, \"planned\": %lld, \"peak\": %lld, \"resident\": [", static_cast<long long>(made),
              static_cast<long long>(planned), static_cast<long long>(peak));
  for (size_t i = 0; i < resident.size(); ++i)
    std::printf("%s%lld", i > 0 ? ", " : "", static_cast<long long>(resident[i]));
  std::printf("]}\n");
  dhlo_model_release(model);
}
