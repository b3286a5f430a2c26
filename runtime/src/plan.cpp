// Counts what a run with given inputs takes, by going its way with services that give nothing.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "machine.hpp"
#include "model.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

// An address that generated code may reckon with; nothing behind it is touched.
alignas(64) uint8_t nowhere[64];

struct PlanCall : dhlo_abi_call {
  const dhlo_abi_entry* entry;
  const dhlo_abi_code* code;
  dhlo_shape* shapes;
  std::vector<int64_t> output_bytes;
  int64_t arena_bytes = 0;
  int64_t worker_scratch = 0;
  int64_t launches = 0;
  int64_t fields[DHLO_PLAN_FIELDS] = {};
  dhlo_status status = DHLO_OK;
  std::string message;

  void* fail_with(dhlo_status why, const std::string& text) {
    status = why;
    message = text;
    return nullptr;
  }
};

// Nothing may leave through compiled code, which knows no exceptions.
template <class Body>
auto fenced(PlanCall* call, Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    call->status = DHLO_OUT_OF_MEMORY;  // texts are all that is allocated
    return {};
  }
}

void* plan_arena(dhlo_abi_call* base, int64_t segment, int64_t bytes) {
  auto* call = static_cast<PlanCall*>(base);
  return fenced(call, [&]() -> void* {
    if (segment < 0 || segment >= call->code->num_segments || bytes < 0)
      return call->fail_with(DHLO_INTERNAL, "the model asked for an arena segment out of range");
    if (__builtin_add_overflow(call->arena_bytes, bytes, &call->arena_bytes))
      return call->fail_with(DHLO_OUT_OF_MEMORY, "arena: size overflows");
    return nowhere;
  });
}

int32_t plan_launch(dhlo_abi_call* base, dhlo_kernel, const int64_t*, int64_t count, int64_t, int64_t scratch_bytes,
                    int64_t) {
  auto* call = static_cast<PlanCall*>(base);
  ++call->launches;
  if (count > 0) call->worker_scratch = std::max(call->worker_scratch, scratch_bytes);
  return 0;
}

void* plan_output(dhlo_abi_call* base, int64_t index, int64_t rank, const int64_t* sizes) {
  auto* call = static_cast<PlanCall*>(base);
  return fenced(call, [&]() -> void* {
    if (index < 0 || index >= call->entry->num_outputs || rank < 0 || rank > DHLO_ABI_MAX_RANK)
      return call->fail_with(DHLO_INTERNAL, "the model gave an output index or rank out of range");
    if (std::any_of(sizes, sizes + rank, [](int64_t size) { return size < 0; }))
      return nowhere;  // the run's checks say more
    const int64_t elements = count_elements(rank, sizes);
    if (elements < 0)
      return call->fail_with(DHLO_OUT_OF_MEMORY, describe_value("output", index, &call->entry->outputs[index]) +
                                                     ": its number of elements does not fit in 62 bits");
    call->output_bytes[static_cast<size_t>(index)] =
        elements * dhlo_dtype_bytes(static_cast<int32_t>(call->entry->outputs[index].dtype));
    if (call->shapes != nullptr) {
      dhlo_shape& shape = call->shapes[index];
      shape.rank = static_cast<int32_t>(rank);
      std::copy_n(sizes, rank, shape.sizes);
    }
    return nowhere;
  });
}

int32_t plan_fail(dhlo_abi_call* base, int64_t check, int64_t expected, int64_t got) {
  auto* call = static_cast<PlanCall*>(base);
  fenced(call, [&]() -> void* {
    // What comes after a decision that data takes may never run.
    if (call->fields[1] != 0) return nullptr;
    if (check < 0 || check >= call->entry->num_checks)
      return call->fail_with(DHLO_INTERNAL, "the model failed an unknown check");
    const dhlo_abi_check& failed = call->entry->checks[check];
    return call->fail_with(check_status(failed), describe_check(failed, expected, got));
  });
  return DHLO_CONTRACT;
}

int32_t plan_collective(dhlo_abi_call*, int64_t, const void*, int64_t, void*, int64_t, const int64_t*) { return 0; }

// A plan is short: nothing stops it.
int32_t plan_poll(dhlo_abi_call*, int32_t) { return 0; }

// Sums that no machine's memory reaches stay at the largest number.
int64_t sum(int64_t a, int64_t b) {
  int64_t total = 0;
  return __builtin_add_overflow(a, b, &total) ? INT64_MAX : total;
}

}  // namespace
}  // namespace dhlo

dhlo_status dhlo_model_plan(const dhlo_model* model, const dhlo_tensor* inputs, int64_t num_inputs, dhlo_shape* outputs,
                            dhlo_plan* given) {
  return dhlo::guard(
      [&] {
        if (model == nullptr) throw dhlo::Error(DHLO_INVALID_ARGUMENT, "dhlo_model_plan: model is null");
        const dhlo_abi_entry& entry = *model->entry;
        const dhlo::Program& program = *model->program;
        dhlo::check_inputs(entry, inputs, num_inputs, false);
        dhlo::PlanCall call{};
        call.constants = program.constants;
        call.state = dhlo::nowhere;
        call.num_threads = program.num_threads;
        call.machine = dhlo::machine_facts();
        call.arena = dhlo::plan_arena;
        call.output = dhlo::plan_output;
        call.launch = dhlo::plan_launch;
        call.fail = dhlo::plan_fail;
        call.plan = call.fields;
        call.poll = dhlo::plan_poll;
        call.collective = dhlo::plan_collective;
        call.entry = &entry;
        call.code = model->code;
        call.shapes = outputs;
        call.output_bytes.assign(static_cast<size_t>(entry.num_outputs), 0);
        if (outputs != nullptr) {
          for (int64_t i = 0; i < entry.num_outputs; ++i) {
            outputs[i] = dhlo_shape{};
            outputs[i].dtype = static_cast<int32_t>(entry.outputs[i].dtype);
            outputs[i].rank = -1;
          }
        }
        const int32_t status = model->code->run(&call, inputs);
        if (call.status != DHLO_OK) throw dhlo::Error(call.status, call.message);
        if (status != 0 && call.fields[1] == 0)
          throw dhlo::Error(DHLO_INTERNAL, "the model's plan failed without a reason");
        if (given == nullptr) return;
        dhlo_plan figures{};
        figures.arena_bytes = call.arena_bytes;
        figures.scratch_bytes = call.worker_scratch > INT64_MAX / 2048
                                    ? INT64_MAX
                                    : dhlo::scratch_stride(call.worker_scratch) * program.num_threads;
        for (const int64_t bytes : call.output_bytes) figures.output_bytes = dhlo::sum(figures.output_bytes, bytes);
        figures.state_bytes = program.abi->state_bytes;
        figures.constants_bytes = program.abi->constants_bytes;
        figures.total_bytes = dhlo::sum(dhlo::sum(figures.arena_bytes, figures.scratch_bytes),
                                        dhlo::sum(figures.output_bytes, figures.state_bytes));
        figures.peak_live_bytes = call.fields[0];
        figures.data_dependent = static_cast<int32_t>(call.fields[1]);
        figures.num_launches = call.launches;
        dhlo::fill(given, figures, "plan");
      },
      dhlo::set_last_error);
}
