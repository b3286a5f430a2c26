// A session: what it is made of, and how it runs a model. What compiled code asks for meanwhile is in
// session_services.cpp, what a run may be given in session_tensors.cpp.
#include "session.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "async.hpp"
#include "machine.hpp"
#include "support.hpp"

using dhlo::Block;
using dhlo::Error;
using dhlo::Output;

namespace {

// 64 bits that nobody can foretell; the clock's where the system has none to give.
uint64_t entropy() {
  uint64_t bits = 0;
  return getentropy(&bits, sizeof bits) == 0 ? bits : static_cast<uint64_t>(dhlo::now()) * 0x9e3779b97f4a7c15ull;
}

}  // namespace

const char* const dhlo::kBusy = "session is in use by another call; create one session a thread";

namespace dhlo {
namespace {

int64_t most_segments(const dhlo_abi_model& abi, int64_t level) {
  int64_t most = 0;
  for (int64_t i = 0; i < abi.num_entries; ++i) most = std::max(most, abi.entries[i].code[level].num_segments);
  return most;
}

}  // namespace

Common::Common(std::shared_ptr<const Program> of, int64_t max_bytes)
    : program(std::move(of)),
      segments(static_cast<size_t>(most_segments(*program->abi, program->level))),
      segment_runs(segments.size()) {
  const dhlo_abi_model& abi = *program->abi;
  if (abi.state_bytes > max_bytes - abi.constants_bytes)
    throw Error(DHLO_OUT_OF_MEMORY, "state of " + std::to_string(abi.state_bytes) + " bytes and constants of " +
                                        std::to_string(abi.constants_bytes) + " bytes exceed the session's cap of " +
                                        std::to_string(max_bytes) + " bytes");
  if (!state.allocate(abi.state_bytes, program->memory())) {
    if (state.misaligned()) throw Error(DHLO_HOST, kMisaligned);
    if (state.over_limit())
      throw Error(DHLO_OUT_OF_MEMORY, "state: " + over_limit_text(abi.state_bytes, program->env->account));
    throw Error(DHLO_OUT_OF_MEMORY, "no memory for " + std::to_string(abi.state_bytes) + " bytes of state");
  }
  reset_state();
  random[0] = static_cast<int64_t>(entropy());
}

void Common::reset_state() {
  const dhlo_abi_model& abi = *program->abi;
  for (int64_t i = 0; i < abi.num_states; ++i) {
    const dhlo_abi_state& s = abi.states[i];
    if (s.bytes > 0)
      std::memcpy(state.data() + s.offset, program->constants + s.init_offset, static_cast<size_t>(s.bytes));
  }
}

void Common::trim() {
  for (Block& segment : segments) segment.free();
  scratch.free();
  arena_bytes = scratch_bytes = scratch_stride = 0;
}

}  // namespace dhlo

dhlo_session::dhlo_session(dhlo_model* of, const dhlo_session_options& given_options,
                           std::shared_ptr<dhlo::Common> with)
    : dhlo_abi_call{},
      model(of),
      options(given_options),
      max_bytes(options.max_bytes > 0 ? options.max_bytes : dhlo::kNoCap),
      common(with != nullptr ? std::move(with) : std::make_shared<dhlo::Common>(of->program, max_bytes)),
      communicator(read_communicator(given_options.communicator)),
      outputs(static_cast<size_t>(of->entry->num_outputs)) {
  options.communicator = communicator.find_group != nullptr ? &communicator : nullptr;
  join_groups();
  const dhlo_abi_entry& entry = *of->entry;
  const dhlo::Program& program = *of->program;
  constants = program.constants;
  num_threads = program.num_threads;
  arena = serve_arena;
  poll = serve_poll;
  collective = serve_collective;
  dhlo_abi_call::output = serve_output;
  fail = serve_fail;
  if (program.env != nullptr) {
    trace = program.env->trace;
    trace_ctx = program.env->trace_ctx;
  }
  set_profile(options.profile != 0);
  random = common->random;
  machine = dhlo::machine_facts();
  state = common->state.data();
  counters.state_bytes = program.abi->state_bytes;
  if (program.parallel.run != nullptr) host_threads = std::make_unique<dhlo::HostThreads>(num_threads);
  if (entry.num_updated > 0) writes.assign(static_cast<size_t>(entry.num_inputs), dhlo::kReads);
  for (int64_t i = 0; i < entry.num_updated; ++i) writes[static_cast<size_t>(entry.updated[i])] = entry.grows[i];
  given.reserve(static_cast<size_t>(entry.num_inputs + entry.num_outputs) + 1);  // the state; is_free() mustn't throw
  dhlo_model_retain(of);
}

dhlo_session::~dhlo_session() {
  if (async != nullptr) async->end();
  outputs.clear();  // blocks may belong to the allocator inside the program
  dhlo_model_release(model);
}

void dhlo_session::seed(uint64_t value) noexcept {
  common->random[0] = static_cast<int64_t>(value);
  common->random[1] = 0;
}

void dhlo_session::copy_state(const dhlo_session& other) noexcept {
  if (counters.state_bytes > 0) std::memcpy(state, other.state, static_cast<size_t>(counters.state_bytes));
  std::copy_n(other.common->random, 2, common->random);
}

void dhlo_session::set_profile(bool on) {
  if (on) profile.resize(static_cast<size_t>(model->code->num_launches));
  profiled = on;
  choose_services();
}

void dhlo_session::set_trace(dhlo_trace_fn fn, void* ctx) {
  trace = fn;
  trace_ctx = ctx;
  choose_services();
}

void dhlo_session::choose_services() { launch = profiled || trace != nullptr ? serve_watched_launch : serve_launch; }

void dhlo_session::trim() {
  for (Output& out : outputs) out.owned.free();
  counters.output_bytes = 0;
  common->trim();
}

void dhlo_session::run_checked(const dhlo_tensor* inputs, int64_t num_inputs) {
  for (Output& out : outputs) out.produced = false;
  counters.arena_used = counters.output_used = 0;
  hook_bytes = scratch_asked = 0;
  starved = false;
  ++common->run_number;
  dhlo::check_inputs(*model->entry, inputs, num_inputs, true);
  check_memory(inputs);
  const int32_t result = model->code->run(this, inputs);
  if (failure != DHLO_OK) return;
  if (result != 0) throw Error(DHLO_INTERNAL, "the model failed without a reason (" + std::to_string(result) + ")");
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].produced) throw Error(DHLO_INTERNAL, "the model did not produce output " + std::to_string(i));
}

dhlo_status dhlo_session::run(const dhlo_tensor* inputs, int64_t num_inputs, const dhlo_run_options& how) noexcept {
  const dhlo::Claim claim(*this);
  if (!claim) return DHLO_BUSY;
  stop.begin(how.timeout_ns, how.cancel);
  return run_claimed(inputs, num_inputs);
}

dhlo_status dhlo_session::run_claimed(const dhlo_tensor* inputs, int64_t num_inputs) noexcept {
  const int64_t begin_ns = trace != nullptr ? dhlo::now() : 0;
  failure = DHLO_OK;
  dhlo_status status = dhlo::guard([&] { run_checked(inputs, num_inputs); },
                                   [&](const char* text) { record(DHLO_INTERNAL, [&] { return std::string(text); }); });
  stop.end();
  if (status == DHLO_OK) status = failure;
  counters.scratch_used = dhlo::scratch_stride(scratch_asked) * num_threads;
  hook_bytes = 0;  // what the hook gave is the host's now
  if (status == DHLO_OK) {
    ++counters.runs;
    message.clear();
  } else {
    ++counters.failed_runs;
    for (Output& out : outputs) out.produced = false;
    if (starved) trim();  // what is held for other shapes may be what is missing for the next
    if (model->program->env != nullptr)
      model->program->env->log(DHLO_LOG_WARNING, [&] {
        return std::string("a run of ") + model->program->abi->name + " failed (" + dhlo_status_name(status) +
               "): " + message;
      });
  }
  if (trace != nullptr) trace_run(begin_ns, status);
  return status;
}

const dhlo_abi_state& dhlo_session::find_state(const char* name, int64_t bytes) const {
  const dhlo_abi_state& s = find_state(name);
  if (s.bytes == bytes) return s;
  throw Error(DHLO_INVALID_ARGUMENT, "state '" + std::string(name) + "': expected " + std::to_string(s.bytes) +
                                         " bytes, got " + std::to_string(bytes));
}

const dhlo_abi_state& dhlo_session::find_state(const char* name) const {
  const dhlo_abi_model& abi = *model->program->abi;
  for (int64_t i = 0; name != nullptr && i < abi.num_states; ++i)
    if (std::strcmp(abi.states[i].name, name) == 0) return abi.states[i];
  throw Error(DHLO_INVALID_ARGUMENT, "the model has no state '" + std::string(name != nullptr ? name : "") + "'");
}
