// Evaluates a model's sizes for given inputs without running it.
#include <cstddef>
#include <string>

#include "cpu.hpp"
#include "model.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

// The services that a plan may use; the rest report a broken rule.
struct PlanCall : dhlo_abi_call {
  const dhlo_abi_model* abi;
  dhlo_shape* shapes;
  dhlo_status status;
  std::string* message;
};

int32_t fail_with(PlanCall* call, dhlo_status status, const std::string& text) {
  call->status = status;
  *call->message = text;
  return status;
}

void* plan_arena(dhlo_abi_call* call, int64_t, int64_t) {
  fail_with(static_cast<PlanCall*>(call), DHLO_INTERNAL, "the model's plan asked for memory");
  return nullptr;
}

int32_t plan_launch(dhlo_abi_call* call, dhlo_kernel, const int64_t*, int64_t, int64_t, int64_t, int64_t) {
  return fail_with(static_cast<PlanCall*>(call), DHLO_INTERNAL, "the model's plan launched a kernel");
}

// The returned pointer is only compared with NULL.
void* plan_output(dhlo_abi_call* base, int64_t index, int64_t rank, const int64_t* sizes) {
  auto* call = static_cast<PlanCall*>(base);
  if (index < 0 || index >= call->abi->num_outputs || rank < 0 || rank > DHLO_ABI_MAX_RANK) {
    fail_with(call, DHLO_INTERNAL, "the model's plan gave an output index or rank out of range");
    return nullptr;
  }
  if (call->shapes != nullptr) {
    dhlo_shape& shape = call->shapes[index];
    shape.rank = static_cast<int32_t>(rank);
    for (int64_t dim = 0; dim < rank; ++dim) shape.sizes[dim] = sizes[dim];
  }
  return call;
}

int32_t plan_fail(dhlo_abi_call* base, int64_t check, int64_t expected, int64_t got) {
  auto* call = static_cast<PlanCall*>(base);
  if (check < 0 || check >= call->abi->num_checks)
    return fail_with(call, DHLO_INTERNAL, "the model failed an unknown check");
  return fail_with(call, DHLO_CONTRACT, describe_check(call->abi->checks[check], expected, got));
}

}  // namespace
}  // namespace dhlo

dhlo_status dhlo_model_plan(const dhlo_model* model, const dhlo_tensor* inputs, int64_t num_inputs, dhlo_shape* outputs,
                            dhlo_plan* plan) {
  return dhlo::guard(
      [&] {
        if (model == nullptr) throw dhlo::Error(DHLO_INVALID_ARGUMENT, "dhlo_model_plan: model is null");
        const dhlo_abi_model& abi = *model->abi;
        dhlo::check_inputs(abi, inputs, num_inputs, false);
        std::string message;
        dhlo::PlanCall call{};
        call.constants = model->constants;
        call.num_threads = model->num_threads;
        call.l2_bytes = dhlo::l2_cache_bytes();
        call.arena = dhlo::plan_arena;
        call.output = dhlo::plan_output;
        call.launch = dhlo::plan_launch;
        call.fail = dhlo::plan_fail;
        call.abi = &abi;
        call.shapes = outputs;
        call.message = &message;
        if (outputs != nullptr) {
          for (int64_t i = 0; i < abi.num_outputs; ++i) {
            outputs[i] = dhlo_shape{};
            outputs[i].dtype = static_cast<int32_t>(abi.outputs[i].dtype);
            outputs[i].rank = -1;
          }
        }
        int64_t fields[DHLO_PLAN_FIELDS] = {0, 0, 0, 0};
        const int32_t status = abi.plan(&call, inputs, fields);
        if (status != 0 && call.status == DHLO_OK)
          throw dhlo::Error(DHLO_INTERNAL, "the model's plan failed without a reason");
        if (call.status != DHLO_OK) throw dhlo::Error(call.status, message);
        if (plan != nullptr) *plan = {fields[0], fields[1], fields[2], fields[3]};
      },
      dhlo::set_last_error);
}
