// What a host sees and steers of runs: tracing, stopping, state in place, introspection, structs that grow.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checks.hpp"

namespace {

struct Trace {
  std::mutex mutex;
  std::vector<dhlo_trace_event> events;

  static void add(void* ctx, const dhlo_trace_event* event) {
    auto* self = static_cast<Trace*>(ctx);
    const std::lock_guard<std::mutex> lock(self->mutex);
    self->events.push_back(*event);
  }
  std::vector<dhlo_trace_event> of(int32_t kind) const {
    std::vector<dhlo_trace_event> found;
    for (const dhlo_trace_event& e : events)
      if (e.kind == kind) found.push_back(e);
    return found;
  }
};

bool inside(const dhlo_trace_event& inner, const dhlo_trace_event& outer) {
  return outer.begin_ns <= inner.begin_ns && inner.begin_ns <= inner.end_ns && inner.end_ns <= outer.end_ns;
}

void test_trace() {
  for (const int64_t threads : {1, 3}) {
    const dhlo::Model model = make_model_with_threads(threads);
    dhlo::Session session(model);
    Trace trace;
    CHECK(dhlo_session_set_trace(session.get(), Trace::add, &trace) == DHLO_OK);
    Call call(5000), bad(3, 1);
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
    CHECK(bad.run(session.get()) == DHLO_CONTRACT);
    const std::vector<dhlo_trace_event> runs = trace.of(DHLO_TRACE_RUN), launches = trace.of(DHLO_TRACE_LAUNCH);
    CHECK(runs.size() == 2 && runs[0].run == 1 && runs[1].run == 2 && runs[0].status == DHLO_OK &&
          runs[1].status == DHLO_CONTRACT && std::string(runs[0].name) == "toy" && runs[0].launch == -1);
    CHECK(launches.size() == 2 && std::string(launches[0].name) == "gather" &&
          std::string(launches[1].name) == "scale" && launches[1].launch == 1 && launches[1].items == 5000);
    for (const dhlo_trace_event& e : launches) CHECK(inside(e, runs[0]) && e.thread == runs[0].thread && e.run == 1);
    int64_t items = 0;
    for (const dhlo_trace_event& e : trace.of(DHLO_TRACE_WORK)) {
      CHECK(e.worker >= 0 && e.worker < threads && (e.worker == 0) == (e.thread == runs[0].thread));
      CHECK(inside(e, launches[static_cast<size_t>(e.launch)]) && e.session == session.get());
      items += e.items;
    }
    CHECK(items == (threads > 1 ? 10'000 : 0));
    for (const dhlo_trace_event& e : trace.of(DHLO_TRACE_WAIT)) CHECK(e.thread == runs[0].thread);
    CHECK(trace.events[0].struct_bytes == sizeof(dhlo_trace_event));
    CHECK(dhlo_session_set_trace(session.get(), nullptr, nullptr) == DHLO_OK);
    const size_t before = trace.events.size();
    CHECK(call.run(session.get()) == DHLO_OK && trace.events.size() == before);
    // What a trace function throws goes no further.
    auto throwing = [](void*, const dhlo_trace_event*) { throw std::runtime_error("no"); };
    CHECK(dhlo_session_set_trace(session.get(), throwing, nullptr) == DHLO_OK);
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  }
}

// The host's own threads are traced, too.
void test_trace_of_host_threads() {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.parallel.num_threads = 3;
  options.parallel.run = [](void*, int64_t tasks, void (*fn)(void*, int64_t), void* arg) -> int32_t {
    for (int64_t task = 0; task < tasks; ++task) fn(arg, task);
    return 0;
  };
  const dhlo::Model model = make_model(&options);
  dhlo::Session session(model);
  Trace trace;
  CHECK(dhlo_session_set_trace(session.get(), Trace::add, &trace) == DHLO_OK);
  Call call(5000);
  CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  int64_t items = 0;
  for (const dhlo_trace_event& e : trace.of(DHLO_TRACE_WORK)) items += e.items;
  CHECK(items == 10'000);
}

struct Steps {  // toy_steps of toy_model.c
  int64_t items = 0, stop_at = -1;
  int32_t cancel = 0, chunks = 0;
};

void point_gate(const dhlo::Session& session, const void* target) {
  const auto address = reinterpret_cast<int64_t>(target);
  CHECK(dhlo_session_write_state(session.get(), "gate", &address, 8) == DHLO_OK);
}

dhlo_run_options run_options(int64_t timeout_ns, const volatile int32_t* cancel) {
  dhlo_run_options options;
  dhlo_run_options_init(&options);
  options.timeout_ns = timeout_ns;
  options.cancel = cancel;
  return options;
}

dhlo_status run_with(const dhlo::Session& session, const Call& call, const dhlo_run_options& options) {
  return dhlo_session_run_with(session.get(), call.views, 2, &options);
}

int64_t steps_done(const dhlo::Session& session) {
  int64_t step = -1;
  CHECK(dhlo_session_read_state(session.get(), "step", &step, 8) == DHLO_OK);
  return step;
}

// A flag of the host's stops a run between two chunks of a launch, also on one thread; what comes after works.
void test_cancel_within_a_launch() {
  for (const int64_t threads : {1, 3}) {
    const dhlo::Model model = make_model_with_threads(threads);
    dhlo::Session session(model);
    Steps steps;
    point_gate(session, &steps);
    Call stopped(5, 7), whole(5, 8), good(700);
    steps.stop_at = 5;
    CHECK(run_with(session, stopped, run_options(0, &steps.cancel)) == DHLO_CANCELLED);
    CHECK(error_of(session) == "the run was cancelled" && steps.items >= 5 && steps.items < 640);
    CHECK(threads > 1 || steps.items == 10);  // one chunk of 64
    CHECK(steps_done(session) == 0 && session.counters().failed_runs == 1);
    dhlo_tensor output;
    CHECK(dhlo_session_output(session.get(), 0, &output) == DHLO_INVALID_ARGUMENT);
    // Still set: the next run ends before anything happens.
    steps.items = 0;
    CHECK(run_with(session, stopped, run_options(0, &steps.cancel)) == DHLO_CANCELLED && steps.items == 0);
    CHECK(good.run(session.get()) == DHLO_OK && good.right(session.get()) && steps_done(session) == 1);
    // A run that has begun to replace what it updates goes on to its end.
    steps.cancel = 0;
    CHECK(run_with(session, whole, run_options(0, &steps.cancel)) == DHLO_OK && steps.cancel == 1);
    CHECK(steps.items == 640 && whole.right(session.get()) && steps_done(session) == 2);
  }
}

// Threads get as many chunks each, where there are more than threads.
void test_chunks_of_a_launch() {
  const int64_t threads[] = {2, 3, 8}, wanted[] = {4, 3, 5};
  for (int i = 0; i < 3; ++i) {
    const dhlo::Model model = make_model_with_threads(threads[i]);
    dhlo::Session session(model);
    Steps steps;
    point_gate(session, &steps);
    Call call(5, 11);
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
    CHECK(steps.items == 16 && steps.chunks == wanted[i]);
  }
}

void test_cancel_from_another_thread() {
  const dhlo::Model model = make_model_with_threads(2);
  dhlo::Session session(model);
  Call looping(5, 6), good(5);
  CHECK(dhlo_session_cancel(session.get()) == DHLO_OK);  // there is no run, and the next one isn't meant
  CHECK(good.run(session.get()) == DHLO_OK);
  std::atomic<bool> over{false};
  std::thread thread([&] {
    while (!over) CHECK(dhlo_session_cancel(session.get()) == DHLO_OK);
  });
  CHECK(looping.run(session.get()) == DHLO_CANCELLED);
  over = true;
  thread.join();
  CHECK(good.run(session.get()) == DHLO_OK && good.right(session.get()));
  CHECK(dhlo_session_cancel(nullptr) == DHLO_INVALID_ARGUMENT);
}

void test_timeout() {
  const dhlo::Model model = make_model_with_threads(2);
  dhlo::Session session(model);
  Call looping(5, 6), good(3000);
  CHECK(run_with(session, looping, run_options(1'000'000, nullptr)) == DHLO_DEADLINE);
  CHECK(error_of(session) == "the run took longer than its timeout of 1000000 ns");
  CHECK(run_with(session, looping, run_options(1, nullptr)) == DHLO_DEADLINE);
  CHECK(run_with(session, good, run_options(INT64_MAX, nullptr)) == DHLO_OK && good.right(session.get()));
  CHECK(run_with(session, good, run_options(-1, nullptr)) == DHLO_INVALID_ARGUMENT);
  dhlo_run_options unset{};
  CHECK(run_with(session, good, unset) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_run_with(session.get(), good.views, 2, nullptr) == DHLO_OK && good.right(session.get()));
  CHECK(dhlo_session_run_with(nullptr, good.views, 2, nullptr) == DHLO_INVALID_ARGUMENT);
}

void test_state_in_place() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  Call call(3);
  const dhlo::Tensor step = session.state("step");
  CHECK(step.sizes().empty() && *step.data<int64_t>() == 0);
  CHECK(call.run(session.get()) == DHLO_OK && *step.data<int64_t>() == 1);
  *step.data<int64_t>() = 40;
  CHECK(call.run(session.get()) == DHLO_OK && *step.data<int64_t>() == 41);
  dhlo_tensor out;
  CHECK(dhlo_session_state(session.get(), "step", &out) == DHLO_OK && out.capacity == 8 && out.dtype == DHLO_I64);
  CHECK(dhlo_session_state(session.get(), "nothing", &out) == DHLO_INVALID_ARGUMENT);
  // What is read and written may be the memory itself.
  CHECK(dhlo_session_read_state(session.get(), "step", out.data, 8) == DHLO_OK &&
        dhlo_session_write_state(session.get(), "step", out.data, 8) == DHLO_OK && *step.data<int64_t>() == 41);
  // It is no input of a run, which writes to it.
  call.views[1].data = out.data;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT &&
        error_of(session) == "the session's state is written by the model, but shares memory with input 1 'mode'");
}

void test_capacity() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  Call call(3);
  const int64_t strides[2] = {8, 2};
  call.views[0].capacity = 48;
  CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  for (const int64_t capacity : {int64_t{47}, int64_t{1}, int64_t{-1}, INT64_MIN}) {
    call.views[0].capacity = capacity;
    CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT && error_of(session).find("capacity") != std::string::npos);
  }
  std::vector<float> strided(3 * 8);
  call.views[0].data = strided.data();
  call.views[0].strides = strides;
  call.views[0].capacity = 96 - 4;
  CHECK(call.run(session.get()) == DHLO_OK);
  call.views[0].capacity = 96 - 5;
  CHECK(call.run(session.get()) == DHLO_INVALID_ARGUMENT);
  call.views[0].capacity = INT64_MAX;
  CHECK(call.run(session.get()) == DHLO_OK);
}

void test_introspection() {
  const dhlo::Model model = make_model();
  CHECK(dhlo_model_num_symbols(model.get()) == 1 && dhlo_model_symbol(model.get(), 0)->max == 1'000'000);
  CHECK(dhlo_model_symbol(model.get(), 1) == nullptr && dhlo_model_symbol(nullptr, 0) == nullptr);
  CHECK(dhlo_model_num_checks(model.get()) == 8 && dhlo_model_check(model.get(), 3)->kind == DHLO_CHECK_MAX);
  CHECK(dhlo_model_check(model.get(), -1) == nullptr && dhlo_model_num_checks(nullptr) == 0);
  CHECK(dhlo_model_num_levels(model.get()) == 1 && dhlo_model_level_index(model.get()) == 0);
  CHECK(dhlo_model_level_at(model.get(), 0)->cpu_features[0] == 0 && dhlo_model_level_at(model.get(), 1) == nullptr);
  CHECK(dhlo_model_state(model.get(), 0)->rank == 0);
}

// Hosts that were built when a struct had fewer fields, or more.
void test_struct_sizes() {
  const dhlo::Model model = make_model();
  dhlo::Session session(model);
  Call call(3);
  CHECK(call.run(session.get()) == DHLO_OK);
  dhlo_counters counters{};
  CHECK(dhlo_session_counters(session.get(), &counters) == DHLO_INVALID_ARGUMENT);
  counters.struct_bytes = offsetof(dhlo_counters, launches);
  counters.launches = 77;
  CHECK(dhlo_session_counters(session.get(), &counters) == DHLO_OK && counters.runs == 1 && counters.launches == 77);
  struct {
    dhlo_counters known;
    int64_t later;
  } longer{};
  longer.later = 5;
  longer.known.struct_bytes = sizeof longer;
  CHECK(dhlo_session_counters(session.get(), &longer.known) == DHLO_OK && longer.known.launches == 2);
  CHECK(longer.later == 0 && longer.known.struct_bytes == sizeof longer);
  dhlo_plan plan{};
  CHECK(dhlo_model_plan(model.get(), call.views, 2, nullptr, &plan) == DHLO_INVALID_ARGUMENT);
  dhlo_launch_profile profile{};
  CHECK(dhlo_session_profile(session.get(), 0, &profile) == DHLO_INVALID_ARGUMENT);
  // What was never set, rather than a struct's size.
  for (const uint32_t bytes : {17u, 95u, 97u, 4104u, 0x7ffffff8u, 0xffffffffu}) {
    counters.struct_bytes = profile.struct_bytes = plan.struct_bytes = bytes;
    CHECK(dhlo_session_counters(session.get(), &counters) == DHLO_INVALID_ARGUMENT);
    CHECK(dhlo_session_profile(session.get(), 0, &profile) == DHLO_INVALID_ARGUMENT);
    CHECK(dhlo_model_plan(model.get(), call.views, 2, nullptr, &plan) == DHLO_INVALID_ARGUMENT);
    dhlo_run_options how = run_options(0, nullptr);
    how.struct_bytes = bytes;
    CHECK(run_with(session, call, how) == DHLO_INVALID_ARGUMENT);
  }
}

// Every number of the type is itself again, and what lies between two goes to the nearer, ties to the even one.
template <class T>
void test_small_float(uint32_t finite, float beyond, uint32_t beyond_bits) {
  for (uint32_t bits = 0; bits <= finite; ++bits) {
    const auto low = static_cast<float>(T::from_bits(static_cast<decltype(T().bits())>(bits)));
    CHECK(T(low).bits() == bits && static_cast<float>(T(-low)) == -low);
    if (bits == finite) break;
    const auto high = static_cast<float>(T::from_bits(static_cast<decltype(T().bits())>(bits + 1)));
    const float middle = low + (high - low) / 2;
    CHECK(low < high && T(middle).bits() == bits + bits % 2);
    CHECK(T(std::nextafter(middle, high)).bits() == bits + 1 && T(std::nextafter(middle, low)).bits() == bits);
  }
  CHECK(T(beyond).bits() == beyond_bits && T(std::numeric_limits<float>::infinity()).bits() == beyond_bits);
  CHECK(std::isnan(static_cast<float>(T(std::numeric_limits<float>::quiet_NaN()))));
}

void test_element_types() {
  test_small_float<dhlo::f16>(0x7bff, 65520.0f, 0x7c00);
  test_small_float<dhlo::bf16>(0x7f7f, std::numeric_limits<float>::max(), 0x7f80);
  test_small_float<dhlo::f8e4m3fn>(0x7e, 465.0f, 0x7f);
  test_small_float<dhlo::f8e5m2>(0x7b, 61440.0f, 0x7c);
  CHECK(static_cast<float>(dhlo::f16(1.5f)) == 1.5f && dhlo::bf16(1.0f).bits() == 0x3f80);
  CHECK(static_cast<float>(dhlo::f8e4m3fn(448.0f)) == 448.0f);
  for (int low = -8; low < 8; ++low)
    for (int high = -8; high < 8; ++high)
      CHECK(dhlo::int4x2(low, high).low() == low && dhlo::int4x2(low, high).high() == high);
  static_assert(sizeof(dhlo::f16) == 2 && sizeof(dhlo::f8e5m2) == 1 && sizeof(dhlo::int4x2) == 1, "as in memory");
  dhlo::bf16 data[2] = {dhlo::bf16(1.0f), dhlo::bf16(-2.0f)};
  CHECK(dhlo::Tensor::of(data, {2}).dtype() == DHLO_BF16 && dhlo::Tensor::of(data, {2}).bytes() == 4);
}

}  // namespace

void test_control() {
  test_element_types();
  test_cancel_within_a_launch();
  test_chunks_of_a_launch();
  test_cancel_from_another_thread();
  test_timeout();
  test_state_in_place();
  test_capacity();
  test_introspection();
  test_struct_sizes();
  test_trace();
  test_trace_of_host_threads();
}
