// Operations with other processes: what compiled code asks for reaches the host's communicator, and what it may do wrong.
// Processes are threads here, over memory that they share.
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "checks.hpp"

namespace {

// x: float32 (n); y: float32 (n) = the sum of all processes'; z: float32 (n) = halves of x exchanged by two processes.
int32_t run(dhlo_abi_call* call, const dhlo_tensor* in) {
  const int64_t n = in[0].sizes[0];
  void* y = call->output(call, 0, 1, in[0].sizes);
  void* z = call->output(call, 1, 1, in[0].sizes);
  if (y == nullptr || z == nullptr) return 1;
  int32_t status = call->collective(call, 0, in[0].data, n, y, n, nullptr);
  if (status != 0) return status;
  const int64_t splits[4] = {n / 2, n - n / 2, n / 2, n - n / 2};
  return call->collective(call, 1, in[0].data, n, z, n, splits);
}

const int64_t kUnknown[] = {-1};
const char* const kDims[] = {"n"};
const dhlo_abi_value kInputs[] = {{"x", DHLO_F32, 1, kUnknown, kDims}};
const dhlo_abi_value kOutputs[] = {{"y", DHLO_F32, 1, kUnknown, kDims}, {"z", DHLO_F32, 1, kUnknown, kDims}};

struct Program {
  dhlo_abi_process_group groups[1] = {{"pair", 2}};
  dhlo_abi_collective collectives[2] = {{DHLO_ALL_REDUCE, 0, DHLO_F32, DHLO_SUM, -1, "model.py:7"},
                                        {DHLO_ALL_TO_ALL, 0, DHLO_F32, -1, -1, ""}};
  dhlo_abi_level level{"", ""};
  dhlo_abi_code code{run, 0, nullptr, 0};
  dhlo_abi_entry entry{};
  dhlo_abi_model abi{};

  Program() {
    entry.name = "";
    entry.metadata = "{}";
    entry.code = &code;
    entry.num_inputs = 1;
    entry.inputs = kInputs;
    entry.num_outputs = 2;
    entry.outputs = kOutputs;
    entry.num_process_groups = 1;
    entry.process_groups = groups;
    entry.num_collectives = 2;
    entry.collectives = collectives;
    abi = {
        DHLO_ABI_MAGIC, DHLO_ABI_VERSION, sizeof(dhlo_abi_model), "pair", "", 1, &level, 1, &entry, 0, nullptr, 0, 0};
  }
  dhlo_status load() const {
    dhlo_model* model = nullptr;
    const dhlo_status status = dhlo_model_from_descriptor(&abi, &constants, 0, nullptr, nullptr, nullptr, &model);
    if (status == DHLO_OK) dhlo_model_release(model);
    return status;
  }
};

// Two processes' numbers, and who has come.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0, round = 0;
  const dhlo_collective* given[2] = {};

  // Returns 0 once `work` is done by both, while what both gave stays; 1 if the run was stopped before.
  template <class Work>
  int32_t meet(int64_t rank, const dhlo_collective& what, Work&& work) {
    std::unique_lock<std::mutex> lock(mutex);
    given[rank] = &what;
    const int here = round;
    if (++arrived == 2) {
      arrived = 0;
      ++round;
      changed.notify_all();
    }
    while (round == here) {
      changed.wait_for(lock, std::chrono::milliseconds(1));
      if (round == here && what.stopped(what.run) != 0) {
        --arrived;
        return 1;
      }
    }
    work(*given[0], *given[1]);
    const int after = round;
    if (++arrived == 2) {
      arrived = 0;
      ++round;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return round != after; });
    return 0;
  }
};

struct Process {
  Meeting* meeting;
  int64_t rank, size = 2;
  int calls = 0;
  bool throws = false;
};

int32_t find_group(void* ctx, const char* group, int64_t* size, int64_t* rank) {
  const auto* self = static_cast<Process*>(ctx);
  if (std::strcmp(group, "pair") != 0) return 1;
  *size = self->size;
  *rank = self->rank;
  return 0;
}

int32_t all_reduce(void* ctx, const dhlo_collective* what) {
  auto* self = static_cast<Process*>(ctx);
  ++self->calls;
  if (self->throws) throw std::runtime_error("unplugged");
  return self->meeting->meet(self->rank, *what, [&](const dhlo_collective& a, const dhlo_collective& b) {
    for (int64_t i = 0; i < what->output_count; ++i)
      static_cast<float*>(what->output)[i] =
          static_cast<const float*>(a.input)[i] + static_cast<const float*>(b.input)[i];
  });
}

int32_t all_to_all(void* ctx, const dhlo_collective* what) {
  auto* self = static_cast<Process*>(ctx);
  ++self->calls;
  return self->meeting->meet(self->rank, *what, [&](const dhlo_collective& a, const dhlo_collective& b) {
    auto* to = static_cast<float*>(what->output);
    for (const dhlo_collective* from : {&a, &b}) {
      const int64_t skip = self->rank == 0 ? 0 : from->sends[0], count = from->sends[self->rank];
      for (int64_t i = 0; i < count; ++i) *to++ = static_cast<const float*>(from->input)[skip + i];
    }
  });
}

dhlo_communicator communicator_of(Process* process) {
  dhlo_communicator made;
  dhlo_communicator_init(&made);
  made.ctx = process;
  made.find_group = find_group;
  made.all_reduce = all_reduce;
  made.all_to_all = all_to_all;
  return made;
}

dhlo_session_options options_with(const dhlo_communicator* communicator) {
  dhlo_session_options options;
  dhlo_session_options_init(&options);
  options.communicator = communicator;
  return options;
}

dhlo::Model model_of(const Program& program) { return dhlo::Model::from(program.abi, &constants, 0); }

struct Numbers {
  explicit Numbers(int64_t n, float first = 0) : x(static_cast<size_t>(n)), sizes{n} {
    std::iota(x.begin(), x.end(), first);
    view = {x.data(), sizes, nullptr, DHLO_F32, 1, 0};
  }
  std::vector<float> x;
  int64_t sizes[1];
  dhlo_tensor view{};
};

void test_two_processes() {
  const Program program;
  const dhlo::Model model = model_of(program);
  CHECK(dhlo_model_num_process_groups(model.get()) == 1 && dhlo_model_process_group(model.get(), 0)->size == 2);
  CHECK(dhlo_model_num_collectives(model.get()) == 2 && dhlo_model_collective(model.get(), 1)->kind == DHLO_ALL_TO_ALL);
  CHECK(dhlo_model_collective(model.get(), 2) == nullptr && dhlo_model_process_group(nullptr, 0) == nullptr);
  Meeting meeting;
  auto one = [&](int64_t rank) {
    Process process{&meeting, rank};
    dhlo_communicator communicator = communicator_of(&process);
    const dhlo_session_options options = options_with(&communicator);
    const dhlo::Session first(model, &options);
    communicator = {};  // it was copied
    dhlo::Session sessions[2] = {first.copy(), first.copy(nullptr)};
    for (const int64_t n : {int64_t{5}, int64_t{0}, int64_t{1000}}) {
      dhlo::Session& session = sessions[n % 2];
      const Numbers numbers(n, static_cast<float>(100 * rank));
      CHECK(dhlo_session_run(session.get(), &numbers.view, 1) == DHLO_OK);
      const auto *y = session.output(0).data<float>(), *z = session.output(1).data<float>();
      bool right = true;
      for (int64_t i = 0; i < n; ++i) right = right && y[i] == static_cast<float>(100 + 2 * i);
      if (rank == 0 && n == 1000) right = right && z[0] == 0 && z[500] == 100;
      if (rank == 1 && n == 1000) right = right && z[0] == 500 && z[500] == 600;
      CHECK(right);
    }
    CHECK(process.calls == 5);  // sums of nothing need nobody
  };
  std::thread other(one, 1);
  one(0);
  other.join();
}

void test_sessions_are_refused() {
  const Program program;
  const dhlo::Model model = model_of(program);
  Meeting meeting;
  Process process{&meeting, 0};
  auto refused = [&](const dhlo_session_options* options, dhlo_status status, const char* text) {
    dhlo_session* session = nullptr;
    CHECK(dhlo_session_create(model.get(), options, &session) == status && session == nullptr);
    if (std::string(dhlo_last_error()).find(text) == std::string::npos) {
      std::printf("unexpected text: %s\n", dhlo_last_error());
      ++failures;
    }
  };
  refused(nullptr, DHLO_INVALID_ARGUMENT, "process group 'pair' of 2 processes, and the session has no communicator");
  dhlo_communicator communicator = communicator_of(&process);
  const dhlo_session_options options = options_with(&communicator);
  process.size = 3;
  refused(&options, DHLO_INVALID_ARGUMENT, "the model is for 2 processes, the communicator's has 3");
  process.size = 2;
  process.rank = 2;
  refused(&options, DHLO_HOST, "process 2 of 2");
  process.rank = 0;
  communicator.all_to_all = nullptr;
  refused(&options, DHLO_INVALID_ARGUMENT, "no all_to_all");
  communicator.struct_bytes = 0;
  refused(&options, DHLO_INVALID_ARGUMENT, "communicator: struct_bytes");
}

void test_failures_are_told() {
  const Program program;
  const dhlo::Model model = model_of(program);
  Meeting meeting;
  Process process{&meeting, 0};
  const dhlo_communicator communicator = communicator_of(&process);
  const dhlo_session_options options = options_with(&communicator);
  const dhlo::Session session(model, &options);
  const Numbers numbers(4);
  process.throws = true;
  CHECK(dhlo_session_run(session.get(), &numbers.view, 1) == DHLO_HOST);
  CHECK(error_of(session) == "all_reduce of process group 'pair' at model.py:7: the communicator failed (-1)");
  process.throws = false;
  dhlo_run_options limits;
  dhlo_run_options_init(&limits);
  limits.timeout_ns = 20'000'000;
  CHECK(dhlo_session_run_with(session.get(), &numbers.view, 1, &limits) == DHLO_DEADLINE);
  int32_t flag = 1;
  limits.cancel = &flag;
  const int before = process.calls;
  CHECK(dhlo_session_run_with(session.get(), &numbers.view, 1, &limits) == DHLO_CANCELLED && process.calls == before);
  CHECK(dhlo_model_plan(model.get(), &numbers.view, 1, nullptr, nullptr) == DHLO_OK && process.calls == before);
}

void test_descriptors_are_checked() {
  auto bad = [](void (*damage)(Program&)) {
    Program program;
    damage(program);
    CHECK(program.load() == DHLO_FORMAT);
  };
  CHECK(Program().load() == DHLO_OK);
  bad([](Program& p) { p.entry.num_collectives = -1; });
  bad([](Program& p) { p.entry.collectives = nullptr; });
  bad([](Program& p) { p.entry.num_process_groups = 0; });
  bad([](Program& p) { p.groups[0].name = nullptr; });
  bad([](Program& p) { p.groups[0].size = -1; });
  bad([](Program& p) { p.collectives[0].kind = 5; });
  bad([](Program& p) { p.collectives[0].group = 1; });
  bad([](Program& p) { p.collectives[0].dtype = DHLO_DTYPE_COUNT; });
  bad([](Program& p) { p.collectives[0].reduction = -1; });
  bad([](Program& p) { p.collectives[1].reduction = DHLO_SUM; });
  bad([](Program& p) { p.collectives[1].root = 0; });
  bad([](Program& p) { p.collectives[1].kind = DHLO_BROADCAST; });
}

}  // namespace

void test_collectives() {
  test_two_processes();
  test_sessions_are_refused();
  test_failures_are_told();
  test_descriptors_are_checked();
}
