// What a host sees and steers of runs: tracing.
#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
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

}  // namespace

void test_control() {
  test_trace();
  test_trace_of_host_threads();
}
