// Tests of the C interface that need C++: threads, hooks, memory behaviour. Exits with 0 if all hold. Takes the path of a
// file of the toy model.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checks.hpp"
#include "dhlo/runtime.hpp"

namespace {

void test_run_and_plan() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  for (int64_t rows : {3, 0, 1, 1000, 64, 65, 20001, 2}) {
    Call call(rows);
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  }
  CHECK(session.output(2).data<int64_t>()[0] == 8);
  float x[20] = {};
  int64_t mode = 0;
  std::vector<dhlo_shape> shapes;
  const dhlo_plan plan = model.plan({dhlo::Tensor::of(x, {5, 4}), dhlo::Tensor::of(&mode, {})}, &shapes);
  CHECK(plan.peak_live_bytes == 80 && plan.data_dependent == 1 && plan.num_launches == 2);
  CHECK(shapes[0].rank == 2 && shapes[0].sizes[0] == 5 && shapes[1].rank == -1 && shapes[2].rank == 0);
  CHECK(shapes[2].dtype == DHLO_I64);
}

void test_errors_leave_session_usable() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  for (int64_t mode = 1; mode <= 4; ++mode) {
    Call bad(3, mode), good(7);
    CHECK(bad.run(session.get()) == (mode == 2 || mode == 3 ? DHLO_INTERNAL : DHLO_CONTRACT));
    CHECK(!error_of(session).empty());
    dhlo_tensor output;
    CHECK(dhlo_session_output(session.get(), 0, &output) == DHLO_INVALID_ARGUMENT);
    CHECK(good.run(session.get()) == DHLO_OK && good.right(session.get()));
  }
  Call call(3);
  call.views[0].data = nullptr;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT &&
        error_of(session) == "input 0 'x': data is null, but the tensor has 12 element(s)");
  call.sizes[0] = -1;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT &&
        error_of(session) == "input 0 'x': size -1 of dim 0 is negative");
  call.sizes[0] = int64_t{1} << 61;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT);
  call.views[0].rank = 9;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT);
  call.views[0].dtype = 77;
  call.views[0].rank = 2;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_run(session.get(), call.views, 1) == DHLO_INVALID_ARGUMENT &&
        error_of(session) == "expected 2 input(s), got 1");
  CHECK(dhlo_session_run(session.get(), nullptr, 2) == DHLO_INVALID_ARGUMENT);
  int64_t word = 0;
  CHECK(dhlo_session_read_state(session.get(), "nothing", &word, 8) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_read_state(session.get(), "step", &word, 4) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_bind_output(session.get(), 3, &word, 8) == DHLO_INVALID_ARGUMENT);
}

void test_descriptor_is_checked() {
  auto status = [](const dhlo_abi_model& abi, size_t bytes) {
    dhlo_model* model = nullptr;
    const dhlo_status result = dhlo_model_from_descriptor(&abi, &constants, bytes, nullptr, nullptr, nullptr, &model);
    dhlo_model_release(model);
    return result;
  };
  dhlo_abi_model abi = dhlo_model_v1;
  CHECK(status(abi, 24) == DHLO_OK);
  CHECK(status(abi, 16) == DHLO_FORMAT);
  abi.version = DHLO_ABI_VERSION + 1;
  CHECK(status(abi, 24) == DHLO_VERSION);
  abi.version = DHLO_ABI_VERSION - 1;
  CHECK(status(abi, 24) == DHLO_VERSION);
  abi = dhlo_model_v1;
  const int64_t missing = 2, first = 0, beyond = 2;
  dhlo_abi_entry entries[2] = {*dhlo_model_v1.entries, *dhlo_model_v1.entries};
  dhlo_abi_entry& entry = entries[0];
  abi.entries = entries;
  entry.num_updated = 1;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  entry.updated = &missing;
  entry.grows = &first;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  entry.updated = &first;
  CHECK(status(abi, 24) == DHLO_FORMAT);  // its first dim can't grow
  entry.grows = &beyond;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  entry = *dhlo_model_v1.entries;
  dhlo_abi_paging paging{};
  entry.paging = &paging;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  entry = *dhlo_model_v1.entries;
  abi.num_entries = 2;
  CHECK(status(abi, 24) == DHLO_FORMAT);  // two of one name
  entries[1].name = "other";
  CHECK(status(abi, 24) == DHLO_OK);
  entries[1].num_checks = -1;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  entries[1].num_checks = 0;
  entries[1].code = nullptr;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  for (const int64_t count : {0, -1, DHLO_ABI_MAX_ENTRIES + 1}) {
    abi.num_entries = count;
    CHECK(status(abi, 24) == DHLO_FORMAT);
  }
  abi = dhlo_model_v1;
  abi.struct_bytes = 8;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  abi = dhlo_model_v1;
  abi.magic = 1;
  CHECK(status(abi, 24) == DHLO_FORMAT);
  abi = dhlo_model_v1;
  dhlo_abi_level levels[2] = {*dhlo_model_v1.levels, *dhlo_model_v1.levels};
  abi.levels = levels;
  levels[0].cpu_features = "nosuch, other";
  CHECK(status(abi, 24) == DHLO_CPU && std::string(dhlo_last_error()).find("lacks nosuch, other") != std::string::npos);
  abi = dhlo_model_v1;
  abi.state_bytes = 8;
  CHECK(status(abi, 24) == DHLO_FORMAT);
}

int32_t run_nothing(dhlo_abi_call*, const dhlo_tensor*) { return 7; }

void test_levels() {
  const char* variable = "DHLO_TARGET";
  dhlo_abi_level levels[3] = {*dhlo_model_v1.levels, *dhlo_model_v1.levels, *dhlo_model_v1.levels};
  dhlo_abi_model abi = dhlo_model_v1;
  dhlo_abi_code code[3] = {*dhlo_model_v1.entries->code, *dhlo_model_v1.entries->code, *dhlo_model_v1.entries->code};
  dhlo_abi_entry entry = *dhlo_model_v1.entries;
  entry.code = code;
  abi.entries = &entry;
  abi.levels = levels;
  abi.num_levels = 3;
  levels[0].name = "low";
  levels[1].name = "mid+a+b";
  code[1].num_launches = 1;
  levels[2].name = "high";
  levels[2].cpu_features = "nosuch,other";
  code[2].run = run_nothing;
  auto taken = [&abi]() -> std::string {
    dhlo_model* model = nullptr;
    const dhlo_status status = dhlo_model_from_descriptor(&abi, &constants, 24, nullptr, nullptr, nullptr, &model);
    if (status != DHLO_OK) return dhlo_status_name(status) + std::string(": ") + dhlo_last_error();
    const std::unique_ptr<dhlo_model, void (*)(dhlo_model*)> owner(model, dhlo_model_release);
    CHECK(dhlo_model_num_launches(model) == (std::string(dhlo_model_level(model)) == "low" ? 4 : 1));
    CHECK(*dhlo_model_cpu_features(model) == 0);
    dhlo_session* session = nullptr;
    CHECK(dhlo_session_create(model, nullptr, &session) == DHLO_OK);
    Call call(5);
    CHECK(call.run(session) == DHLO_OK && call.right(session));
    dhlo_session_destroy(session);
    return dhlo_model_level(model);
  };
  unsetenv(variable);
  CHECK(taken() == "mid+a+b");  // the last that this machine can run
  setenv(variable, "native", 1);
  CHECK(taken() == "mid+a+b");
  setenv(variable, "low", 1);
  CHECK(taken() == "low");
  setenv(variable, "high, low", 1);
  CHECK(taken() == "low");
  setenv(variable, "mid+b+a", 1);
  CHECK(taken() == "mid+a+b");
  setenv(variable, "high", 1);
  CHECK(taken() == "cpu: model descriptor: this processor lacks nosuch, other for 'high'");
  setenv(variable, "none", 1);
  CHECK(taken() ==
        "cpu: model descriptor: DHLO_TARGET asks for 'none'; the model has the levels 'low', "
        "'mid+a+b', 'high'");
  unsetenv(variable);
  levels[0].cpu_features = levels[1].cpu_features = "nosuch";
  CHECK(taken().find("lacks nosuch, other for 'high'; nosuch for 'mid+a+b'; nosuch for 'low'") != std::string::npos);
  abi.num_levels = 0;
  CHECK(taken().find("no levels") != std::string::npos);
  abi.num_levels = DHLO_ABI_MAX_LEVELS + 1;
  CHECK(taken().find("no levels, or too many") != std::string::npos);
  abi.num_levels = 3;
  abi.levels = nullptr;
  CHECK(taken().find("no levels") != std::string::npos);
}

// Two entries over one state, whose second has other launches and segments.
void test_entries() {
  dhlo_abi_model abi = dhlo_model_v1;
  dhlo_abi_entry entries[2] = {*dhlo_model_v1.entries, *dhlo_model_v1.entries};
  dhlo_abi_code more = *entries[1].code;
  more.num_segments = 7;
  more.num_launches = 2;
  entries[0].name = "prefill";
  entries[1].name = "decode";
  entries[1].metadata = "{\"toy\": 2}";
  entries[1].code = &more;
  abi.entries = entries;
  abi.num_entries = 2;
  const dhlo::Model model = dhlo::Model::from(abi, &constants, 24);
  CHECK((model.entries() == std::vector<std::string>{"prefill", "decode"}));
  CHECK(dhlo_model_entry_name(model.get(), 2) == nullptr && dhlo_model_entry_name(model.get(), -1) == nullptr);
  const dhlo::Model decode = model.entry("decode");
  CHECK(decode.metadata() == "{\"toy\": 2}" && model.metadata() == "{\"toy\": true}");
  CHECK(dhlo_model_num_launches(model.get()) == 4 && dhlo_model_num_launches(decode.get()) == 2);
  dhlo_model* none = nullptr;
  CHECK(dhlo_model_entry(model.get(), "train", &none) == DHLO_INVALID_ARGUMENT && none == nullptr);
  CHECK(dhlo_last_error() == std::string("the model has no entry 'train'; it has 'prefill', 'decode'"));
  CHECK(dhlo_model_entry(nullptr, "decode", &none) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_model_entry(model.get(), nullptr, &none) == DHLO_INVALID_ARGUMENT);

  auto first = std::make_unique<dhlo::Session>(model);
  dhlo::Session second = first->sharing(decode), alone(decode);
  Call call(5);
  auto step = [](const dhlo::Session& session) { return session.read_state<int64_t>("step")[0]; };
  const int64_t start = step(alone);
  CHECK(call.run(first->get()) == DHLO_OK && call.right(first->get()));
  const int64_t arena = first->counters().arena_bytes;
  CHECK(arena > 0 && second.counters().arena_bytes == arena);  // one arena
  CHECK(call.run(second.get()) == DHLO_OK && call.right(second.get()) && call.right(first->get()));
  CHECK(second.counters().arena_bytes == arena && second.counters().runs == 1 && first->counters().runs == 1);
  CHECK(step(*first) == start + 2 && step(second) == start + 2 && step(alone) == start);
  const dhlo::Session copied = second.copy();
  second.write_state<int64_t>("step", {40});
  CHECK(step(*first) == 40 && step(copied) == start + 2);
  first->reset_state();
  CHECK(step(second) == start);
  first.reset();  // what is shared stays
  CHECK(call.run(second.get()) == DHLO_OK && call.right(second.get()) && step(second) == start + 1);

  const dhlo::Model other = dhlo::Model::from(abi, &constants, 24);
  dhlo_session* wrong = nullptr;
  CHECK(dhlo_session_create_sharing(second.get(), other.get(), nullptr, &wrong) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_last_error() == std::string("the session and the entry are of different models"));
  CHECK(dhlo_session_create_sharing(nullptr, other.get(), nullptr, &wrong) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_create_sharing(second.get(), nullptr, nullptr, &wrong) == DHLO_INVALID_ARGUMENT);
}

void test_bound_and_callback_outputs() {
  const dhlo::Model model = make_model();
  struct Given {
    std::vector<float> memory[3];
    int calls = 0;
  } given;
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.output = [](void* ctx, int64_t index, int32_t dtype, int64_t rank, const int64_t* sizes) -> void* {
    auto* g = static_cast<Given*>(ctx);
    ++g->calls;
    int64_t elements = dtype == DHLO_I64 ? 2 : 1;
    for (int64_t dim = 0; dim < rank; ++dim) elements *= sizes[dim];
    g->memory[index].resize(static_cast<size_t>(elements));
    return g->memory[index].data();
  };
  options.output_ctx = &given;
  dhlo::Session session(model, &options);
  Call call(10);
  CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()) && given.calls == 3);
  CHECK(session.output(0).raw() == given.memory[0].data() && session.counters().output_bytes == 0);
  std::vector<float> own(40);
  session.bind_output(0, own.data(), 160);
  CHECK(call.run(session.get()) == DHLO_OK && session.output(0).raw() == own.data() && given.calls == 5);
  Call larger(11);
  CHECK(larger.run(session.get()) == DHLO_INVALID_ARGUMENT);
  CHECK(error_of(session) == "output 0 'y': 176 bytes needed, but the bound memory has 160");
  session.bind_output(0, nullptr, 0);
  CHECK(larger.run(session.get()) == DHLO_OK && larger.right(session.get()));
}

void test_cap() {
  const dhlo::Model model = make_model();
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.max_bytes = 200'000;
  dhlo::Session session(model, &options);
  Call small(100), large(100'000);
  CHECK(small.run(session.get()) == DHLO_OK);
  CHECK(large.run(session.get()) == DHLO_OUT_OF_MEMORY && error_of(session).find("cap of 200000") != std::string::npos);
  CHECK(small.run(session.get()) == DHLO_OK && small.right(session.get()));
  // Any size that fits is served, whatever the growth policy would like to take.
  for (int64_t rows = 100; rows < 3000; rows += 97) CHECK(Call(rows).run(session.get()) == DHLO_OK);
  const dhlo_counters c = session.counters();
  CHECK(c.arena_bytes + c.scratch_bytes + c.output_bytes <= 200'000);
  options.max_bytes = 0;
  dhlo::Session uncapped(model, &options);
  Call huge(0);
  huge.sizes[0] = 1'000'000;
  huge.x.resize(4'000'000);
  huge.views[0].data = huge.x.data();
  CHECK(huge.run(uncapped.get()) == DHLO_OK);
  dhlo_session_trim(session.get());
  CHECK(session.counters().arena_bytes == 0 && small.run(session.get()) == DHLO_OK);
}

void test_state() {
  const dhlo::Model model = make_model();
  dhlo::Session first(model), second(model);
  Call call(1);
  CHECK(call.run(first.get()) == DHLO_OK && call.run(first.get()) == DHLO_OK && call.run(second.get()) == DHLO_OK);
  CHECK(first.output(2).data<int64_t>()[0] == 2 && second.output(2).data<int64_t>()[0] == 1);
  int64_t step = 40;
  CHECK(dhlo_session_write_state(first.get(), "step", &step, 8) == DHLO_OK && call.run(first.get()) == DHLO_OK);
  CHECK(dhlo_session_read_state(first.get(), "step", &step, 8) == DHLO_OK && step == 41);
  dhlo_session_reset_state(first.get());
  CHECK(dhlo_session_read_state(first.get(), "step", &step, 8) == DHLO_OK && step == 0);
}

void test_no_allocation_in_steady_state() {
  const dhlo::Model model = make_model_with_threads(2);
  dhlo::Session session(model);
  std::vector<std::unique_ptr<Call>> calls;
  for (int64_t rows : {5000, 1, 0, 700, 4999, 64, 129}) calls.push_back(std::make_unique<Call>(rows));
  for (auto& call : calls) CHECK(call->run(session.get()) == DHLO_OK);
  const int64_t before = allocations, growths = session.counters().growths;
  for (int round = 0; round < 100; ++round)
    for (auto& call : calls)
      if (call->run(session.get()) != DHLO_OK) std::abort();
  const int64_t after = allocations;
  CHECK(after == before && session.counters().growths == growths);
}

void test_hooks() {
  struct Host {
    std::atomic<int64_t> held{0}, allocs{0}, tasks{0};
  } host;
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.allocator.ctx = options.parallel.ctx = &host;
  options.allocator.alloc = [](void* ctx, size_t bytes, size_t alignment) {
    static_cast<Host*>(ctx)->held += static_cast<int64_t>(bytes);
    ++static_cast<Host*>(ctx)->allocs;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  };
  options.allocator.free = [](void* ctx, void* data, size_t bytes, size_t) {
    static_cast<Host*>(ctx)->held -= static_cast<int64_t>(bytes);
    std::free(data);
  };
  options.parallel.num_threads = 3;
  options.parallel.run = [](void* ctx, int64_t tasks, void (*fn)(void*, int64_t), void* arg) -> int32_t {
    static_cast<Host*>(ctx)->tasks += tasks;
    std::vector<std::thread> threads;
    for (int64_t task = 1; task < tasks; ++task) threads.emplace_back(fn, arg, task);
    fn(arg, 0);
    for (std::thread& thread : threads) thread.join();
    return 0;
  };
  {
    const dhlo::Model model = make_model(&options);
    CHECK(dhlo_model_num_threads(model.get()) == 3);
    dhlo::Session session(model);
    for (int64_t rows : {10, 100'000, 3}) {
      Call call(rows);
      CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
    }
    CHECK(host.allocs > 0 && host.held > 100'000 * 16 && host.tasks == 6);
  }
  CHECK(host.held == 0);
}

void test_sessions_share_the_pool() {
  const dhlo::Model model = make_model_with_threads(4);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      dhlo::Session session(model);
      for (int round = 0; round < 60; ++round) {
        Call call((round * 37 + t * 101) % 3000);
        if (call.run(session.get()) != DHLO_OK || !call.right(session.get())) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

void test_busy_session() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  std::atomic<int64_t> gate{0};
  const auto address = reinterpret_cast<int64_t>(&gate);
  CHECK(dhlo_session_write_state(session.get(), "gate", &address, 8) == DHLO_OK);
  std::atomic<bool> ok{false};
  Call held(5, 5), other(5);
  std::thread thread([&] {
    dhlo_status status = DHLO_BUSY;
    while (status == DHLO_BUSY) status = held.run(session.get());
    ok = status == DHLO_OK;
  });
  dhlo_status status = DHLO_OK;
  while (status != DHLO_BUSY) status = other.run(session.get());  // until the thread has begun
  CHECK(std::string(dhlo_last_error()).find("in use") != std::string::npos);
  gate = 1;
  thread.join();
  CHECK(ok && other.run(session.get()) == DHLO_OK && other.right(session.get()));
}

void test_profile() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  Call call(1000);
  dhlo_launch_profile figures{};
  figures.struct_bytes = sizeof figures;
  CHECK(call.run(session.get()) == DHLO_OK && dhlo_session_profile(session.get(), 0, &figures) == DHLO_OK &&
        figures.count == 0);
  CHECK(dhlo_session_set_profile(session.get(), 2) == DHLO_OK && call.run(session.get()) == DHLO_OK &&
        call.run(session.get()) == DHLO_OK);
  CHECK(dhlo_session_profile(session.get(), 1, &figures) == DHLO_OK && figures.count == 2 && figures.nanoseconds > 0);
  CHECK(dhlo_session_set_profile(session.get(), 0) == DHLO_OK && call.run(session.get()) == DHLO_OK);
  CHECK(dhlo_session_profile(session.get(), 1, &figures) == DHLO_OK && figures.count == 2);
  CHECK(dhlo_session_profile(session.get(), 9, &figures) == DHLO_INVALID_ARGUMENT);
  CHECK(session.counters().launches == 8 && session.counters().runs == 4);
}

void test_helpers() {
  CHECK(dhlo_dtype_bytes(DHLO_BF16) == 2 && dhlo_dtype_bytes(99) == 0 &&
        std::strcmp(dhlo_dtype_name(DHLO_C64), "complex64") == 0);
  CHECK(dhlo_runtime_version() == 0x000100u && dhlo_runtime_abi_version() == DHLO_ABI_VERSION);
  CHECK(std::strcmp(dhlo_status_name(DHLO_BUSY), "busy") == 0 && std::strcmp(dhlo_status_name(-3), "unknown") == 0);
}

// The C++ interface hands the options on; models that share pages of one file run at the same time.
void test_constants_memory(const char* path) {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  CHECK(options.verify_constants == DHLO_VERIFY_ONCE && options.constants_memory == DHLO_CONSTANTS_AUTO);
  std::vector<dhlo::Model> models;
  for (int32_t memory = DHLO_CONSTANTS_AUTO; memory <= DHLO_CONSTANTS_COPIED; ++memory)
    for (int32_t verify = DHLO_VERIFY_NEVER; verify <= DHLO_VERIFY_ALWAYS; ++verify) {
      options.constants_memory = memory;
      options.verify_constants = verify;
      models.push_back(dhlo::Model::load(path, &options));
    }
  std::vector<std::thread> threads;
  for (const dhlo::Model& model : models)
    threads.emplace_back([&model] {
      dhlo::Session session(model);
      Call call(65);
      CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
    });
  for (std::thread& thread : threads) thread.join();
  for (int32_t wrong : {-1, 5, 1 << 30}) {
    options.constants_memory = wrong;
    dhlo_model* model = nullptr;
    CHECK(dhlo_model_load_file(path, &options, &model) == DHLO_INVALID_ARGUMENT && model == nullptr);
  }
  dhlo_model_options_init(&options);
  options.weights_path = path;  // a model file
  dhlo_model* model = nullptr;
  CHECK(dhlo_model_load_file(path, &options, &model) == DHLO_FORMAT && model == nullptr);
  options.weights_data = path;
  CHECK(dhlo_model_load_file(path, &options, &model) == DHLO_INVALID_ARGUMENT && model == nullptr);
  options.weights_path = nullptr;
  CHECK(dhlo_model_load_file(path, &options, &model) == DHLO_FORMAT && model == nullptr);  // no bytes
  options.weights_data = nullptr;
  options.weights_bytes = 1;
  CHECK(dhlo_model_load_file(path, &options, &model) == DHLO_INVALID_ARGUMENT && model == nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  test_machine();
  test_run_and_plan();
  test_errors_leave_session_usable();
  test_descriptor_is_checked();
  test_levels();
  test_entries();
  test_bound_and_callback_outputs();
  test_cap();
  test_state();
  test_no_allocation_in_steady_state();
  test_hooks();
  test_sessions_share_the_pool();
  test_busy_session();
  test_profile();
  test_helpers();
  if (argc > 1) test_constants_memory(argv[1]);
  test_control();
  test_environments();
  test_collectives();
  test_hostile_hosts();
  test_failures(argc > 1 ? argv[1] : nullptr);
  std::printf(failures == 0 ? "all passed%s\n" : "failed%s\n", COUNTS_ALLOCATIONS ? ", allocations counted" : "");
  return failures == 0 ? 0 : 1;
}
