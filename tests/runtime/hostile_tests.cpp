// Hosts that break their promises: hooks that throw, fail or lie, null arguments, memory that is given twice. Nothing of it
// may crash or give wrong results unsaid, and the session works afterwards.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cgroup.hpp"
#include "checks.hpp"
#include "overlap.hpp"

namespace {

using Task = void (*)(void* arg, int64_t task);

// What a host does with the tasks that it is given.
enum Habit {
  kHonest,
  kRunsNothing,
  kFails,
  kThrows,
  kThrowsAfterwards,
  kRunsTwice,
  kLeavesFirstOut,
  kOutOfRange,
  kNegative,
  kReturnsEarly,
  kRunsLate,
  kHabits
};

struct Host {
  Habit habit = kHonest;
  int threw = 0;  // by throwing something that is no std::exception
  std::vector<std::thread> threads;
  Task late = nullptr;
  void* late_arg = nullptr;
  ~Host() {
    for (std::thread& thread : threads) thread.join();
  }
};

int32_t run_tasks(void* ctx, int64_t tasks, Task fn, void* arg) {
  auto& host = *static_cast<Host*>(ctx);
  auto run_all = [&] {
    for (int64_t task = 0; task < tasks; ++task) fn(arg, task);
  };
  switch (host.habit) {
    case kRunsNothing: return 0;
    case kFails: return 7;
    case kThrows: throw std::runtime_error("no threads today");
    case kThrowsAfterwards: run_all(); throw ++host.threw;
    case kRunsTwice: {
      std::vector<std::thread> twice;
      for (int64_t task = 0; task < 2 * tasks; ++task) twice.emplace_back(fn, arg, task / 2);
      for (std::thread& thread : twice) thread.join();
      return 0;
    }
    case kLeavesFirstOut:
      for (int64_t task = 1; task < tasks; ++task) fn(arg, task);
      return 0;
    case kOutOfRange:
      fn(arg, tasks + 1000);
      run_all();
      return 0;
    case kNegative:
      fn(arg, -1);
      run_all();
      return 0;
    case kReturnsEarly:
      for (int64_t task = 0; task < tasks; ++task) host.threads.emplace_back(fn, arg, task);
      return 0;
    case kRunsLate:
      // Those of the launch before, while this one runs.
      if (host.late != nullptr) host.threads.emplace_back(host.late, host.late_arg, 0);
      host.late = fn;
      host.late_arg = arg;
      run_all();
      return 0;
    default: run_all(); return 0;
  }
}

void test_hosts_that_lie() {
  Host host;
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.parallel = {&host, 3, run_tasks};
  const dhlo::Model model = make_model(&options);
  Call call(20'000);
  for (int habit = kHonest; habit < kHabits; ++habit) {
    dhlo::Session session(model);
    const bool harmless = habit == kHonest || habit == kRunsTwice || habit == kLeavesFirstOut || habit == kRunsLate;
    for (int round = 0; round < 5; ++round) {
      host.habit = static_cast<Habit>(habit);
      const dhlo_status status = call.run(session.get());
      if (harmless) CHECK(status == DHLO_OK);
      if (!harmless && habit != kReturnsEarly)
        CHECK(status == DHLO_HOST && error_of(session).find("parallel.run") == 0);
      if (status == DHLO_OK) CHECK(call.right(session.get()));  // early returns may be, where threads were fast
      host.habit = kHonest;
      CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
    }
    for (std::thread& thread : host.threads) thread.join();
    host.threads.clear();
    host.late = nullptr;
  }
}

struct Memory {
  int64_t until_failure = -1;  // requests until all fail, while it isn't negative
  int how = 0;                 // by giving nothing, by throwing, with misaligned memory
  int64_t held = 0;
};

void* give(void* ctx, size_t bytes, size_t alignment) {
  auto& memory = *static_cast<Memory*>(ctx);
  const bool fail = memory.until_failure == 0 || (memory.until_failure > 0 && --memory.until_failure == 0);
  if (fail && memory.how == 0) return nullptr;
  if (fail && memory.how == 1) throw std::bad_alloc();
  if (fail && memory.how == 2) throw "no exception of the standard";
  ++memory.held;
  auto* data = static_cast<char*>(std::aligned_alloc(alignment, (bytes + 2 * alignment) / alignment * alignment));
  return fail ? data + 8 : data;
}

void take_back(void* ctx, void* data, size_t, size_t alignment) {
  --static_cast<Memory*>(ctx)->held;
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::free(reinterpret_cast<void*>(address / alignment * alignment));
  throw 1;
}

void test_allocators_that_fail() {
  Memory memory;
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.allocator = {&memory, give, take_back};
  {
    const dhlo::Model model = make_model(&options);
    for (memory.how = 0; memory.how < 4; ++memory.how) {
      for (int64_t k = 1; k < 8; ++k) {
        memory.until_failure = k;
        dhlo_session* session = nullptr;
        const dhlo_status expected = memory.how == 3 ? DHLO_HOST : DHLO_OUT_OF_MEMORY;
        const dhlo_status created = dhlo_session_create(model.get(), nullptr, &session);
        CHECK(created == (k == 1 ? expected : DHLO_OK) && (session != nullptr) == (k > 1));
        if (session == nullptr) continue;
        Call call(3000);
        const dhlo_status status = call.run(session);
        CHECK(status == (memory.until_failure == 0 ? expected : DHLO_OK));
        if (status != DHLO_OK) CHECK(std::strlen(dhlo_session_error(session)) > 0);
        memory.until_failure = -1;
        CHECK(call.run(session) == DHLO_OK && call.right(session));
        dhlo_session_destroy(session);
      }
    }
  }
  CHECK(memory.held == 0);
}

void test_output_hooks_that_fail() {
  const dhlo::Model model = make_model();
  struct Given {
    int how = 0;
    std::vector<float> memory[3];
  } given;
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.output_ctx = &given;
  options.output = [](void* ctx, int64_t index, int32_t, int64_t, const int64_t*) -> void* {
    auto& g = *static_cast<Given*>(ctx);
    if (g.how == 1) return nullptr;
    if (g.how == 2) throw std::runtime_error("no memory for outputs");
    if (g.how == 3) throw 7;
    g.memory[index].resize(1000);
    return g.memory[index].data();
  };
  dhlo::Session session(model, &options);
  Call call(50);
  for (given.how = 1; given.how < 4; ++given.how) {
    CHECK(call.run(session.get()) == DHLO_OUT_OF_MEMORY && error_of(session).find("output 0 'y'") == 0);
    const int how = given.how;
    given.how = 0;
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
    given.how = how;
  }
  // Memory of an input, and one memory for two outputs.
  struct Lent {
    void* memory[3];
  } lent{};
  dhlo_session_options lending = options;
  lending.output_ctx = &lent;
  lending.output = [](void* ctx, int64_t index, int32_t, int64_t, const int64_t*) -> void* {
    return static_cast<Lent*>(ctx)->memory[index];
  };
  dhlo::Session borrower(model, &lending);
  std::vector<float> room[3] = {std::vector<float>(400), std::vector<float>(400), std::vector<float>(400)};
  lent = {{call.x.data(), room[1].data(), room[2].data()}};
  CHECK(call.run(borrower.get()) == DHLO_HOST &&
        error_of(borrower) == "output 0 'y': the host gave memory that it shares with input 0 'x'");
  lent = {{room[0].data(), room[0].data() + 100, room[2].data()}};
  CHECK(call.run(borrower.get()) == DHLO_HOST && error_of(borrower).find("output 0 'y'") != std::string::npos);
  lent = {{room[0].data(), room[1].data(), room[2].data()}};
  CHECK(call.run(borrower.get()) == DHLO_OK && call.right(borrower.get()));
  // A hook that calls back into its session is one call too many.
  struct Back {
    dhlo_session* session = nullptr;
    dhlo_status status[3] = {};
    alignas(64) float memory[3 * 320];
  } back;
  options.output_ctx = &back;
  options.output = [](void* ctx, int64_t index, int32_t, int64_t, const int64_t*) -> void* {
    auto& b = *static_cast<Back*>(ctx);
    b.status[0] = dhlo_session_trim(b.session);
    b.status[1] = dhlo_session_reset_state(b.session);
    b.status[2] = dhlo_session_run(b.session, nullptr, 0);
    return b.memory + 320 * index;
  };
  dhlo::Session again(model, &options);
  back.session = again.get();
  CHECK(call.run(again.get()) == DHLO_OK && call.right(again.get()));
  for (const dhlo_status status : back.status) CHECK(status == DHLO_BUSY);
}

void test_release_that_throws() {
  dhlo_model* model = nullptr;
  const auto release = [](void*) { throw std::runtime_error("not mine"); };
  CHECK(dhlo_model_from_descriptor(&dhlo_model_v1, &constants, 24, release, nullptr, nullptr, &model) == DHLO_OK);
  dhlo_model_release(model);
}

void test_null_arguments() {
  dhlo_model* no_model = nullptr;
  dhlo_session* none = nullptr;
  dhlo_model* model_out = nullptr;
  dhlo_tensor tensor;
  dhlo_counters counters{};
  dhlo_launch_profile profile{};
  int64_t word = 0;
  const dhlo_status refused[] = {
      dhlo_model_load_file(nullptr, nullptr, &model_out),
      dhlo_model_load_file("x", nullptr, nullptr),
      dhlo_model_load_memory(nullptr, 0, nullptr, &model_out),
      dhlo_model_load_memory(&word, 8, nullptr, nullptr),
      dhlo_model_from_descriptor(nullptr, nullptr, 0, nullptr, nullptr, nullptr, &model_out),
      dhlo_model_from_descriptor(&dhlo_model_v1, &constants, 24, nullptr, nullptr, nullptr, nullptr),
      dhlo_model_plan(no_model, nullptr, 0, nullptr, nullptr),
      dhlo_session_create(no_model, nullptr, &none),
      dhlo_session_copy(none, nullptr, &none),
      dhlo_session_run(none, nullptr, 0),
      dhlo_session_bind_output(none, 0, nullptr, 0),
      dhlo_session_output(none, 0, &tensor),
      dhlo_session_read_state(none, "step", &word, 8),
      dhlo_session_write_state(none, "step", &word, 8),
      dhlo_session_reset_state(none),
      dhlo_session_snapshot(none, &word, 8),
      dhlo_session_restore(none, &word, 8),
      dhlo_session_seed(none, 1),
      dhlo_session_trim(none),
      dhlo_session_set_profile(none, 1),
      dhlo_session_profile(none, 0, &profile),
  };
  for (const dhlo_status status : refused) CHECK(status == DHLO_INVALID_ARGUMENT);
  CHECK(std::strstr(dhlo_last_error(), "null") != nullptr);
  dhlo_model_retain(no_model);
  dhlo_model_release(no_model);
  dhlo_session_destroy(none);
  dhlo_model_options_init(nullptr);
  dhlo_session_options_init(nullptr);
  dhlo_session_counters(none, &counters);
  dhlo_session_counters(none, nullptr);
  CHECK(counters.runs == 0 && dhlo_session_model(none) == nullptr && dhlo_session_snapshot_bytes(none) == 0);
  CHECK(*dhlo_session_error(none) == 0 && *dhlo_model_name(no_model) == 0 && *dhlo_model_metadata(no_model) == 0);
  CHECK(*dhlo_model_producer(no_model) == 0 && *dhlo_model_level(no_model) == 0 &&
        *dhlo_model_cpu_features(no_model) == 0);
  CHECK(dhlo_model_num_inputs(no_model) == 0 && dhlo_model_input(no_model, 0) == nullptr);
  CHECK(dhlo_model_num_outputs(no_model) == 0 && dhlo_model_output(no_model, 0) == nullptr);
  CHECK(dhlo_model_num_states(no_model) == 0 && dhlo_model_state(no_model, 0) == nullptr);
  CHECK(dhlo_model_num_launches(no_model) == 0 && dhlo_model_launch(no_model, 0) == nullptr);
  CHECK(dhlo_model_input_is_updated(no_model, 0) == 0 && dhlo_model_num_threads(no_model) == 0);
  CHECK(dhlo_model_constants_bytes(no_model) == 0 && dhlo_model_state_bytes(no_model) == 0);
  CHECK(dhlo_cpu_supports(nullptr) == 0);

  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  CHECK(dhlo_session_create(model.get(), nullptr, nullptr) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_copy(session.get(), nullptr, nullptr) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_output(session.get(), 0, nullptr) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_read_state(session.get(), "step", nullptr, 8) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_write_state(session.get(), nullptr, &word, 8) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_snapshot(session.get(), nullptr, 8) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_restore(session.get(), nullptr, 8) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_profile(session.get(), 0, nullptr) == DHLO_INVALID_ARGUMENT);
  CHECK(Call(3).run(session.get()) == DHLO_OK);
}

void test_absurd_options() {
  const dhlo::Model model = make_model();
  dhlo_session* out = nullptr;
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.max_bytes = -1;
  CHECK(dhlo_session_create(model.get(), &options, &out) == DHLO_INVALID_ARGUMENT && out == nullptr);
  for (const uint32_t bytes : {0u, 8u, 16u, 17u, 24u, 31u, 33u, 40u, 4096u, 4104u, 0xfffffff8u, 0xffffffffu}) {
    dhlo_session_options_init(&options);
    options.struct_bytes = bytes;
    out = nullptr;
    const bool known = bytes >= 16 && bytes <= 4096 && bytes % 8 == 0;
    CHECK(dhlo_session_create(model.get(), &options, &out) == (known ? DHLO_OK : DHLO_INVALID_ARGUMENT));
    dhlo_session_destroy(out);
  }
  dhlo_model_options model_options;
  for (const int64_t threads : {int64_t{-1}, int64_t{1025}, std::numeric_limits<int64_t>::max()}) {
    dhlo_model* made = nullptr;
    dhlo_model_options_init(&model_options);
    model_options.num_threads = threads;
    auto status = [&] {
      return dhlo_model_from_descriptor(&dhlo_model_v1, &constants, 24, nullptr, nullptr, &model_options, &made);
    };
    CHECK(status() == DHLO_INVALID_ARGUMENT);
    model_options.num_threads = 0;
    model_options.parallel = {nullptr, threads, run_tasks};
    CHECK(status() == DHLO_INVALID_ARGUMENT);
  }
}

// Every byte that a tensor covers; `twice` is set if two of its indices name one.
std::set<int64_t> bytes_of(const dhlo_tensor& tensor, int64_t item, int64_t base, bool* twice) {
  std::set<int64_t> bytes;
  int64_t elements = 1;
  for (int32_t d = 0; d < tensor.rank; ++d) elements *= tensor.sizes[d];
  *twice = false;
  for (int64_t e = 0; e < elements; ++e) {
    int64_t at = base, rest = e;
    for (int32_t d = tensor.rank - 1; d >= 0; --d) {
      at += rest % tensor.sizes[d] * tensor.strides[d] * item;
      rest /= tensor.sizes[d];
    }
    for (int64_t b = 0; b < item; ++b) *twice |= !bytes.insert(at + b).second;
  }
  return bytes;
}

void test_overlap_is_exact() {
  std::mt19937_64 random(1);
  auto pick = [&random](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  int shared = 0, apart = 0;
  for (int round = 0; round < 20'000; ++round) {
    int64_t sizes[2][3], strides[2][3], item[2], base[2];
    dhlo::Region regions[2];
    std::set<int64_t> bytes[2];
    for (int t = 0; t < 2; ++t) {
      const auto rank = static_cast<int32_t>(pick(0, 3));
      item[t] = pick(0, 1) == 0 ? 1 : 4;
      base[t] = 100'000 + pick(0, 40);
      for (int d = 0; d < 3; ++d) {
        sizes[t][d] = pick(0, 60) == 0 ? 0 : pick(1, 4);
        strides[t][d] = pick(0, 3) == 0 ? pick(-6, 6) : 6 * pick(0, 6);
      }
      const dhlo_tensor tensor{reinterpret_cast<void*>(base[t]), sizes[t], strides[t], DHLO_U8, rank, 0};
      bool twice = false;
      bytes[t] = bytes_of(tensor, item[t], base[t], &twice);
      CHECK(dhlo::addressable(tensor, item[t]));
      dhlo::find_region(tensor, item[t], &regions[t]);
      CHECK(regions[t].empty() == bytes[t].empty() && (!twice || regions[t].folded));
    }
    bool meet = false;
    for (const int64_t byte : bytes[0]) meet |= bytes[1].count(byte) != 0;
    CHECK(dhlo::share_bytes(regions[0], regions[1]) == meet && dhlo::share_bytes(regions[1], regions[0]) == meet);
    ++(meet ? shared : apart);
  }
  CHECK(shared > 2000 && apart > 2000);
  int64_t size[2] = {5, 3}, stride[2] = {int64_t{1} << 62, 1};
  for (const int64_t wide : {int64_t{1} << 62, INT64_MIN, int64_t{1} << 55, -(int64_t{1} << 54), INT64_MAX}) {
    stride[0] = wide;
    CHECK(!dhlo::addressable({&size, size, stride, DHLO_F32, 2, 0}, 4));
  }
  size[0] = 1;  // a stride that is never taken
  CHECK(dhlo::addressable({&size, size, stride, DHLO_F32, 2, 0}, 4));
}

void test_shared_memory() {
  dhlo_abi_model abi = dhlo_model_v1;
  const int64_t x_is_updated = 0, as_it_is = -1, columns = 1;
  dhlo_abi_entry entry = *dhlo_model_v1.entries;
  abi.entries = &entry;
  entry.num_updated = 1;
  entry.updated = &x_is_updated;
  entry.grows = &as_it_is;
  const dhlo::Model model = dhlo::Model::from(abi, &constants, 24);
  dhlo::Session session(model);
  Call call(6);
  CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  // The scalar inside the updated tensor, and just behind it.
  alignas(8) float memory[64] = {};
  call.views[0].data = memory;
  call.views[1].data = memory + 22;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT);
  CHECK(error_of(session) == "input 0 'x' is written by the model, but shares memory with input 1 'mode'");
  call.views[1].data = memory + 24;
  CHECK(call.run(session.get()) == DHLO_OK);
  // In the gap between its rows, and across the edge of it.
  const int64_t strides[2] = {8, 1};
  call.views[0].strides = strides;
  call.views[1].data = memory + 8 + 4;
  CHECK(call.run(session.get()) == DHLO_OK);
  call.views[1].data = memory + 8 + 2;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT);
  entry.grows = &columns;  // the gaps are room to grow into
  dhlo::Session growing(dhlo::Model::from(abi, &constants, 24));
  call.views[1].data = memory + 8 + 4;
  CHECK(call.run(growing.get()) == DHLO_INVALID_ARGUMENT);
  call.views[1].data = memory + 48;
  CHECK(call.run(growing.get()) == DHLO_OK);
  const int64_t wide[2] = {INT64_MAX, 1};
  call.views[0].strides = wide;
  call.sizes[0] = 1;
  CHECK(call.run(growing.get()) == DHLO_INVALID_ARGUMENT);
  call.sizes[0] = 6;
  const int64_t repeated[2] = {0, 1};
  call.views[0].strides = repeated;
  call.views[1].data = &call.mode;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT &&
        error_of(session).find("several of its elements share memory") != std::string::npos);
  call.views[0].strides = nullptr;
  // Outputs that are bound: to an input's memory, to each other's.
  dhlo::Session bound(make_model());
  std::vector<float> y(100);
  call.views[0].data = y.data() + 20;
  bound.bind_output(0, y.data(), 100);
  CHECK(call.run(bound.get()) == DHLO_INVALID_ARGUMENT);
  CHECK(error_of(bound) == "output 0 'y' is written by the model, but shares memory with input 0 'x'");
  bound.bind_output(0, y.data() + 44, 100);
  bound.bind_output(1, y.data() + 44 + 24, 100);
  CHECK(call.run(bound.get()) == DHLO_INVALID_ARGUMENT &&
        error_of(bound) ==
            "output 0 'y' is written by the model, but shares memory with output 1 'positive', which is "
            "written, too");
  bound.bind_output(1, nullptr, 0);
  CHECK(call.run(bound.get()) == DHLO_OK);
  // What a run gave out is no input of the next, nor is what the session holds for one output memory for another.
  dhlo::Session back(make_model());
  Call first(40), second(40);
  CHECK(first.run(back.get()) == DHLO_OK);
  dhlo_tensor given_out;
  CHECK(dhlo_session_output(back.get(), 0, &given_out) == DHLO_OK);
  second.views[0].data = given_out.data;
  CHECK(second.run(back.get()) == DHLO_INVALID_ARGUMENT &&
        error_of(back) == "output 0 'y' is written by the model, but shares memory with input 0 'x'");
  CHECK(first.run(back.get()) == DHLO_OK && first.right(back.get()));
  CHECK(dhlo_session_output(back.get(), 0, &given_out) == DHLO_OK);
  back.bind_output(1, given_out.data, 640);
  CHECK(first.run(back.get()) == DHLO_INVALID_ARGUMENT);
  back.bind_output(1, nullptr, 0);
  CHECK(first.run(back.get()) == DHLO_OK && first.right(back.get()));
  CHECK(dhlo_session_bind_output(bound.get(), 0, y.data(), std::numeric_limits<int64_t>::max()) == DHLO_OK);
  CHECK(call.run(bound.get()) == DHLO_INVALID_ARGUMENT);
}

void test_snapshots() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  session.seed(5);
  for (int i = 0; i < 3; ++i) CHECK(Call(1).run(session.get()) == DHLO_OK);
  const std::vector<uint8_t> snapshot = session.snapshot();
  dhlo::Session copy = session.copy();
  CHECK(copy.snapshot() == snapshot && copy.read_state<int64_t>("step")[0] == 3);
  CHECK(Call(1).run(session.get()) == DHLO_OK && copy.read_state<int64_t>("step")[0] == 3);
  session.restore(snapshot);
  CHECK(session.read_state<int64_t>("step")[0] == 3);
  // Any change is found, and nothing has changed then.
  session.write_state("step", std::vector<int64_t>{77});
  for (size_t length = 0; length < snapshot.size(); ++length)
    CHECK(dhlo_session_restore(session.get(), snapshot.data(), static_cast<int64_t>(length)) == DHLO_FORMAT);
  for (size_t at = 0; at < snapshot.size(); ++at) {
    std::vector<uint8_t> damaged = snapshot;
    damaged[at] ^= 0x80;
    const dhlo_status status =
        dhlo_session_restore(session.get(), damaged.data(), static_cast<int64_t>(damaged.size()));
    CHECK(status == DHLO_FORMAT || status == DHLO_INVALID_ARGUMENT);
    CHECK(session.read_state<int64_t>("step")[0] == 77);
  }
  // A model whose states have another name or size.
  dhlo_abi_state states[2] = {dhlo_model_v1.states[0], dhlo_model_v1.states[1]};
  dhlo_abi_model abi = dhlo_model_v1;
  abi.states = states;
  states[0].name = "step2";
  dhlo::Session renamed(dhlo::Model::from(abi, &constants, 24));
  CHECK(dhlo_session_restore(renamed.get(), snapshot.data(), static_cast<int64_t>(snapshot.size())) ==
        DHLO_INVALID_ARGUMENT);
  CHECK(error_of(renamed) ==
        "the snapshot is of another model: it has state 'step' of 8 bytes (int64) where this model has "
        "'step2' of 8 bytes (int64)");
  states[0].name = "step";
  states[0].dtype = DHLO_F64;
  dhlo::Session retyped(dhlo::Model::from(abi, &constants, 24));
  CHECK(dhlo_session_restore(retyped.get(), snapshot.data(), static_cast<int64_t>(snapshot.size())) ==
        DHLO_INVALID_ARGUMENT);
  CHECK(error_of(retyped) ==
        "the snapshot is of another model: it has state 'step' of 8 bytes (int64) where this model has "
        "'step' of 8 bytes (float64)");
  struct Three {
    char bytes[3];
  };
  try {
    session.read_state<Three>("step");
    CHECK(false);
  } catch (const dhlo::RuntimeError& error) {
    CHECK(error.status() == DHLO_INVALID_ARGUMENT);
  }
}

void test_accounts() {
  const dhlo::Model model = make_model_with_threads(2);
  Call call(3000);
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.max_bytes = 24 + 16 - 1;  // constants and state
  dhlo_session* none = nullptr;
  CHECK(dhlo_session_create(model.get(), &options, &none) == DHLO_OUT_OF_MEMORY && none == nullptr);
  CHECK(std::strstr(dhlo_last_error(), "state of 16 bytes and constants of 24 bytes exceed") != nullptr);
  // What a run says it took is enough for a session's cap, and a byte less isn't; whoever gives the outputs' memory.
  std::vector<float> given[3];
  for (const bool hook : {false, true}) {
    dhlo_session_options_init(&options);
    if (hook) {
      options.output_ctx = given;
      options.output = [](void* ctx, int64_t index, int32_t, int64_t, const int64_t*) -> void* {
        auto& memory = static_cast<std::vector<float>*>(ctx)[index];
        memory.resize(12'000);
        return memory.data();
      };
    }
    dhlo::Session free(model, &options);
    CHECK(call.run(free.get()) == DHLO_OK);
    const dhlo_counters c = free.counters();
    int64_t positive = 0;
    for (const float x : call.x) positive += x > 0;
    CHECK(c.state_bytes == 16 && c.output_used == 3000 * 16 + positive * 4 + 8 && c.scratch_used == 2 * 128);
    options.max_bytes = 24 + 16 + c.arena_used + c.scratch_used + c.output_used;
    dhlo::Session capped(model, &options);
    for (int round = 0; round < 3; ++round) CHECK(call.run(capped.get()) == DHLO_OK && call.right(capped.get()));
    --options.max_bytes;
    dhlo::Session tight(model, &options);
    CHECK(call.run(tight.get()) == DHLO_OUT_OF_MEMORY && error_of(tight).find("cap of") != std::string::npos);
    CHECK(Call(5).run(tight.get()) == DHLO_OK);
  }
}

// Folders and files as the kernel would show them.
void test_quotas() {
  char folder[] = "/tmp/dhlo-cgroup-XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  const std::string root = folder;
  auto write = [&root](const std::string& path, const std::string& text) {
    const std::string whole = root + "/" + path;
    CHECK(std::system(("mkdir -p " + whole.substr(0, whole.rfind('/'))).c_str()) == 0);
    std::ofstream(whole) << text;
  };
  auto processors = [&root](const std::string& groups) {
    std::ofstream(root + "/groups") << groups;
    return dhlo::cgroup_processors((root + "/groups").c_str(), root.c_str());
  };
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  write("a/b/c/cpu.max", "max 100000\n");
  CHECK(processors("0::/a/b/c\n") == kNone && processors("0::/gone/for/good\n") == kNone);
  write("a/cpu.max", "250000 100000\n");
  CHECK(processors("0::/a/b/c\n") == 3 && processors("0::/\n") == kNone);
  write("a/b/cpu.max", "50000 100000\n");
  CHECK(processors("0::/a/b/c\n") == 1 && processors("0::/a\n") == 3);
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(processors("3:memory:/\n2:cpu,cpuacct:/job/inner\n1:name=systemd:/\n") == 4);
  CHECK(processors("2:cpuset:/job\n") == kNone);
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  CHECK(processors("2:cpu:/\n") == kNone);
  write("cpu.max", "200000 100000\n");  // a container whose group's path is that of its host
  CHECK(processors("0::/kubepods/pod1/c2\n") == 2);
  for (const char* odd : {"", ":", "::", "0:", "garbage\n\n:::\n", "0::/../../../..\n"}) processors(odd);
  write("x/cpu.max", "garbage");
  CHECK(processors("0::/x\n") == 2);
  CHECK(dhlo::cgroup_processors("/nonexistent", "/nonexistent") == kNone);
  CHECK(std::system(("rm -r " + root).c_str()) == 0);
}

}  // namespace

void test_hostile_hosts() {
  test_hosts_that_lie();
  test_allocators_that_fail();
  test_output_hooks_that_fail();
  test_release_that_throws();
  test_null_arguments();
  test_absurd_options();
  test_overlap_is_exact();
  test_shared_memory();
  test_snapshots();
  test_accounts();
  test_quotas();
}
