// What the processes that run a model do together: who they are, and how compiled code's operations reach them.
#include <cstddef>
#include <cstring>

#include "session.hpp"
#include "support.hpp"

using dhlo::Error;

namespace {

const char* name_of(int64_t kind) {
  static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"};
  return names[kind];  // descriptors with others are refused
}

dhlo_collective_fn hook_of(const dhlo_communicator& communicator, int64_t kind) {
  const dhlo_collective_fn hooks[] = {communicator.all_reduce, communicator.all_gather, communicator.reduce_scatter,
                                      communicator.all_to_all, communicator.broadcast};
  return hooks[kind];
}

// "all_reduce of process group 'tp' at model.py:7"
std::string describe_operation(const dhlo_abi_entry& entry, const dhlo_abi_collective& operation) {
  std::string text =
      std::string(name_of(operation.kind)) + " of process group '" + entry.process_groups[operation.group].name + "'";
  if (operation.place != nullptr && *operation.place != 0) text += std::string(" at ") + operation.place;
  return text;
}

std::string processes(int64_t count) { return std::to_string(count) + (count == 1 ? " process" : " processes"); }

int32_t is_stopped(const void* run) { return static_cast<dhlo::Stop*>(const_cast<void*>(run))->asked() ? 1 : 0; }

}  // namespace

void dhlo_communicator_init(dhlo_communicator* communicator) {
  if (communicator == nullptr) return;
  *communicator = dhlo_communicator{};
  communicator->struct_bytes = sizeof *communicator;
}

dhlo_communicator dhlo_session::read_communicator(const dhlo_communicator* given) {
  return dhlo::read_struct(given, dhlo_communicator_init, sizeof(dhlo_communicator), "communicator");
}

void dhlo_session::join_groups() {
  const dhlo_abi_entry& entry = *model->entry;
  for (int64_t i = 0; i < entry.num_process_groups; ++i) {
    const dhlo_abi_process_group& group = entry.process_groups[i];
    const std::string name = "process group '" + std::string(group.name) + "'";
    if (communicator.find_group == nullptr)
      throw Error(DHLO_INVALID_ARGUMENT,
                  "the model does collective operations in " + name +
                      (group.size > 0 ? " of " + processes(group.size) : std::string()) +
                      ", and the session has no communicator: set dhlo_session_options.communicator, or in Python call "
                      "bind_process_group() of the model");
    int64_t size = 0, rank = -1;
    if (dhlo::fenced([&] { return communicator.find_group(communicator.ctx, group.name, &size, &rank); }, -1) != 0)
      throw Error(DHLO_INVALID_ARGUMENT, "the communicator has no " + name + ", which the model does operations in");
    if (size < 1 || rank < 0 || rank >= size)
      throw Error(DHLO_HOST, "the communicator says that this is process " + std::to_string(rank) + " of " +
                                 std::to_string(size) + " in " + name);
    if (group.size > 0 && size != group.size)
      throw Error(DHLO_INVALID_ARGUMENT, name + ": the model is for " + processes(group.size) +
                                             ", the communicator's has " + std::to_string(size));
    group_sizes.push_back(size);
  }
  for (int64_t i = 0; i < entry.num_collectives; ++i) {
    const dhlo_abi_collective& operation = entry.collectives[i];
    if (hook_of(communicator, operation.kind) == nullptr)
      throw Error(DHLO_INVALID_ARGUMENT,
                  "the communicator has no " + std::string(name_of(operation.kind)) + ", which the model needs");
    if (const int64_t size = group_sizes[static_cast<size_t>(operation.group)]; operation.root >= size)
      throw Error(DHLO_INVALID_ARGUMENT, describe_operation(entry, operation) + ": there is no process " +
                                             std::to_string(operation.root) + " among " + std::to_string(size));
  }
}

int32_t dhlo_session::serve_collective(dhlo_abi_call* call, int64_t index, const void* input, int64_t count,
                                       void* output, int64_t out_count, const int64_t* splits) {
  auto* self = static_cast<dhlo_session*>(call);
  const dhlo_abi_entry& entry = *self->model->entry;
  if (index < 0 || index >= entry.num_collectives || count < 0 || out_count < 0)
    return self->record(DHLO_INTERNAL, [] { return std::string("the model asked for an unknown operation"); });
  if (self->stop.asked()) return self->record_stop();
  const dhlo_abi_collective& operation = entry.collectives[index];
  const bool scatters = operation.kind == DHLO_ALL_TO_ALL;
  if (count == 0 && !scatters) return 0;  // of all processes
  const int64_t size = self->group_sizes[static_cast<size_t>(operation.group)];
  dhlo_collective what{};
  what.struct_bytes = sizeof what;
  what.kind = static_cast<int32_t>(operation.kind);
  what.dtype = static_cast<int32_t>(operation.dtype);
  what.reduction = static_cast<int32_t>(operation.reduction);
  what.group = entry.process_groups[operation.group].name;
  what.group_size = size;
  what.root = operation.root;
  what.input = input;
  what.input_count = count;
  what.output = output;
  what.output_count = out_count;
  what.sends = scatters ? splits : nullptr;
  what.receives = scatters ? splits + size : nullptr;
  what.timeout_ns = self->stop.left_ns();
  what.run = &self->stop;
  what.stopped = is_stopped;
  const int64_t begin_ns = self->trace != nullptr ? dhlo::now() : 0;
  const int32_t failed = dhlo::fenced(
      [&] { return hook_of(self->communicator, operation.kind)(self->communicator.ctx, &what); }, int32_t{-1});
  int32_t status = DHLO_OK;
  if (failed != 0)
    status = self->stop.asked() ? self->record_stop() : self->record(DHLO_HOST, [&] {
      return describe_operation(entry, operation) + ": the communicator failed (" + std::to_string(failed) + ")";
    });
  if (self->trace != nullptr)
    self->tracer(name_of(operation.kind), -1).tell(DHLO_TRACE_COLLECTIVE, begin_ns, out_count, 0, status);
  return status;
}
