// Runs a model: the services that compiled code asks for, and the memory behind them.
#include "session.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "async.hpp"
#include "machine.hpp"
#include "support.hpp"

using dhlo::Block;
using dhlo::Error;
using dhlo::Launch;
using dhlo::Output;

namespace {

// Chunks a thread gets at most: enough to even out threads that start late, few enough that claiming costs nothing; and
// in runs that somebody may want to stop.
constexpr int64_t kChunksPerThread = 4;
constexpr int64_t kFineChunksPerThread = 64;
constexpr int64_t kNoCap = std::numeric_limits<int64_t>::max();
// Also the result for an empty tensor: aligned, not null, never dereferenced.
alignas(64) uint8_t empty_block[64];
constexpr const char* kMisaligned = "the host's allocator gave memory that isn't aligned as it was asked for";

constexpr int64_t kReads = -2;  // of an input that the run doesn't write to

// Throws Error unless all of a tensor lies in the memory that the caller says it has.
void check_capacity(const dhlo_abi_entry& entry, const dhlo_tensor& input, int64_t index) {
  auto fail = [&](const std::string& text) {
    throw Error(DHLO_INVALID_ARGUMENT, dhlo::describe_value("input", index, &entry.inputs[index]) + ": " + text);
  };
  const auto begin = reinterpret_cast<uintptr_t>(input.data);
  if (input.capacity < 0) fail("its capacity is negative");
  if (static_cast<uintptr_t>(input.capacity) > UINTPTR_MAX - begin)
    fail("its capacity reaches beyond what can be addressed");
  dhlo::Region region;
  dhlo::find_region(input, dhlo_dtype_bytes(input.dtype), &region);
  if (region.empty()) return;
  const auto first = reinterpret_cast<uintptr_t>(region.begin), last = reinterpret_cast<uintptr_t>(region.end);
  if (first < begin || last - begin > static_cast<uintptr_t>(input.capacity))
    fail("its sizes and strides reach beyond its capacity of " + std::to_string(input.capacity) + " bytes");
}

void check_addressable(const dhlo_abi_entry& entry, const dhlo_tensor& input, int64_t index) {
  // Sizes and strides below 2^20 reach no further than 2^47 bytes: nearly all tensors.
  uint64_t bits = 0;
  for (int32_t d = 0; input.strides != nullptr && d < input.rank; ++d)
    bits |= static_cast<uint64_t>(input.sizes[d]) | static_cast<uint64_t>(input.strides[d]);
  if (bits >> 20 == 0) return;
  if (!dhlo::addressable(input, dhlo_dtype_bytes(input.dtype)))
    throw Error(DHLO_INVALID_ARGUMENT, dhlo::describe_value("input", index, &entry.inputs[index]) +
                                           ": its strides reach beyond what can be addressed");
}

// 64 bits that nobody can foretell; the clock's where the system has none to give.
uint64_t entropy() {
  uint64_t bits = 0;
  return getentropy(&bits, sizeof bits) == 0 ? bits : static_cast<uint64_t>(dhlo::now()) * 0x9e3779b97f4a7c15ull;
}

}  // namespace

const char* const dhlo::kBusy = "session is in use by another call; create one session a thread";

template <class Make>
dhlo_status dhlo_session::record(dhlo_status status, Make&& make) noexcept {
  failure = status;
  try {
    message = make();
  } catch (...) {
    message.clear();
  }
  return status;
}

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
      max_bytes(options.max_bytes > 0 ? options.max_bytes : kNoCap),
      common(with != nullptr ? std::move(with) : std::make_shared<dhlo::Common>(of->program, max_bytes)),
      outputs(static_cast<size_t>(of->entry->num_outputs)) {
  const dhlo_abi_entry& entry = *of->entry;
  const dhlo::Program& program = *of->program;
  constants = program.constants;
  num_threads = program.num_threads;
  arena = serve_arena;
  poll = serve_poll;
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
  if (entry.num_updated > 0) writes.assign(static_cast<size_t>(entry.num_inputs), kReads);
  for (int64_t i = 0; i < entry.num_updated; ++i) writes[static_cast<size_t>(entry.updated[i])] = entry.grows[i];
  given.reserve(static_cast<size_t>(entry.num_inputs + entry.num_outputs));
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

int64_t dhlo_session::held_bytes() const noexcept {
  return model->program->abi->constants_bytes + counters.state_bytes + common->arena_bytes + common->scratch_bytes +
         counters.output_bytes + hook_bytes;
}

void dhlo_session::release_unused(const Block* but) noexcept {
  for (size_t i = 0; i < common->segments.size(); ++i) {
    Block& segment = common->segments[i];
    if (common->segment_runs[i] == common->run_number || &segment == but) continue;
    common->arena_bytes -= segment.bytes();
    segment.free();
  }
  for (Output& out : outputs) {
    if (out.produced || &out.owned == but) continue;
    counters.output_bytes -= out.owned.bytes();
    out.owned.free();
  }
  if (scratch_asked == 0 && &common->scratch != but) {
    common->scratch_bytes = common->scratch_stride = 0;
    common->scratch.free();
  }
}

bool dhlo_session::grow(Block* block, int64_t bytes, int64_t* held, const char* what) noexcept {
  if (bytes <= block->bytes() && block->data() != nullptr) return true;
  if (bytes > max_bytes - (held_bytes() - block->bytes())) release_unused(block);
  const int64_t budget = max_bytes - (held_bytes() - block->bytes());
  if (bytes > budget) {
    starved = true;
    record(DHLO_OUT_OF_MEMORY, [&] {
      return std::string(what) + ": " + std::to_string(bytes) + " bytes needed, but the session's cap of " +
             std::to_string(max_bytes) + " bytes leaves " + std::to_string(std::max<int64_t>(budget, 0));
    });
    return false;
  }
  // Under a cap the first block is as large as it must be, so that a cap of what a plan says is enough, and later ones
  // leave half of the room to others.
  const bool capped = max_bytes != kNoCap;
  const int64_t room = capped ? bytes + (block->data() != nullptr ? (budget - bytes) / 2 : 0) : budget;
  const int64_t wanted = dhlo::grown_bytes(bytes, block->bytes(), room);
  *held -= block->bytes();
  ++counters.growths;
  const dhlo::Memory from = model->program->memory();
  bool ok = block->extend(wanted) || block->allocate(wanted, from, wanted / 2) ||
            (wanted > bytes && block->allocate(bytes, from));
  if (!ok && block->over_limit()) {
    release_unused(block);
    ok = block->allocate(bytes, from);
  }
  *held += block->bytes();
  if (model->program->env != nullptr)
    model->program->env->log(DHLO_LOG_DEBUG, [&] {
      return std::string(what) + " of a session of " + model->program->abi->name + ": now " +
             std::to_string(block->bytes()) + " bytes";
    });
  if (!ok && block->misaligned())
    record(DHLO_HOST, [&] { return std::string(what) + ": " + kMisaligned; });
  else if (!ok)
    record(DHLO_OUT_OF_MEMORY, [&] {
      return std::string(what) + ": " +
             (block->over_limit() ? dhlo::over_limit_text(bytes, *from.account)
                                  : "no memory for " + std::to_string(bytes) + " bytes");
    });
  starved |= !ok;
  return ok;
}

void* dhlo_session::serve_arena(dhlo_abi_call* call, int64_t segment, int64_t bytes) {
  auto* self = static_cast<dhlo_session*>(call);
  if (segment < 0 || segment >= self->model->code->num_segments || bytes < 0) {
    self->record(DHLO_INTERNAL, [] { return std::string("the model asked for an arena segment out of range"); });
    return nullptr;
  }
  dhlo::Common& common = *self->common;
  Block& block = common.segments[static_cast<size_t>(segment)];
  if (!self->grow(&block, bytes, &common.arena_bytes, "arena")) return nullptr;
  common.segment_runs[static_cast<size_t>(segment)] = common.run_number;
  self->counters.arena_used += bytes;
  return block.data();
}

void* dhlo_session::place_output(int64_t index, Output& out, int64_t bytes) noexcept {
  const dhlo_abi_value* value = &model->entry->outputs[index];
  if (out.bound != nullptr) {
    if (bytes <= out.capacity) return out.bound;
    record(DHLO_INVALID_ARGUMENT, [&] {
      return dhlo::describe_value("output", index, value) + ": " + std::to_string(bytes) +
             " bytes needed, but the bound memory has " + std::to_string(out.capacity);
    });
    return nullptr;
  }
  counters.output_used += bytes;
  if (options.output != nullptr) {
    if (bytes > max_bytes - held_bytes()) release_unused(nullptr);
    if (bytes > max_bytes - held_bytes()) {
      starved = true;
      record(DHLO_OUT_OF_MEMORY, [&] {
        return dhlo::describe_value("output", index, value) + ": " + std::to_string(bytes) +
               " bytes needed, but the session's cap of " + std::to_string(max_bytes) + " bytes leaves " +
               std::to_string(std::max<int64_t>(max_bytes - held_bytes(), 0));
      });
      return nullptr;
    }
    void* data = dhlo::fenced(
        [&] {
          return options.output(options.output_ctx, index, static_cast<int32_t>(value->dtype), out.rank, out.sizes);
        },
        static_cast<void*>(nullptr));
    hook_bytes += bytes;
    if (data != nullptr) return trusts_output_hook || is_free(index, data, bytes) ? data : nullptr;
    if (bytes == 0) return empty_block;
    record(DHLO_OUT_OF_MEMORY, [&] {
      return dhlo::describe_value("output", index, value) + ": the host gave no memory for " + std::to_string(bytes) +
             " bytes";
    });
    return nullptr;
  }
  return grow(&out.owned, bytes, &counters.output_bytes, "outputs") ? out.owned.data() : nullptr;
}

void* dhlo_session::serve_output(dhlo_abi_call* call, int64_t index, int64_t rank, const int64_t* sizes) {
  auto* self = static_cast<dhlo_session*>(call);
  const dhlo_abi_entry& entry = *self->model->entry;
  const int64_t elements = rank >= 0 && rank <= DHLO_ABI_MAX_RANK ? dhlo::count_elements(rank, sizes) : -1;
  if (index < 0 || index >= entry.num_outputs || rank < 0 || rank > DHLO_ABI_MAX_RANK ||
      std::any_of(sizes, sizes + rank, [](int64_t size) { return size < 0; })) {
    self->record(DHLO_INTERNAL,
                 [&] { return "the model gave output " + std::to_string(index) + " an impossible size"; });
    return nullptr;
  }
  if (elements < 0) {
    self->record(DHLO_OUT_OF_MEMORY, [&] {
      return dhlo::describe_value("output", index, &entry.outputs[index]) +
             ": its number of elements does not fit in 62 bits";
    });
    return nullptr;
  }
  Output& out = self->outputs[static_cast<size_t>(index)];
  out.rank = static_cast<int32_t>(rank);
  std::copy_n(sizes, rank, out.sizes);
  const int64_t bytes = elements * dhlo_dtype_bytes(static_cast<int32_t>(entry.outputs[index].dtype));
  out.data = self->place_output(index, out, bytes);
  out.produced = out.data != nullptr;
  return out.data;
}

int32_t dhlo_session::serve_launch(dhlo_abi_call* call, dhlo_kernel fn, const int64_t* args, int64_t count,
                                   int64_t grain, int64_t scratch_bytes, int64_t) {
  auto* self = static_cast<dhlo_session*>(call);
  ++self->counters.launches;
  if (self->stop.asked()) return self->record_stop();
  if (count <= 0) return 0;
  dhlo::Common& common = *self->common;
  self->scratch_asked = std::max(self->scratch_asked, scratch_bytes);
  if (scratch_bytes > common.scratch_stride) {
    if (scratch_bytes > kNoCap / 2048)  // of at most 1024 threads
      return self->record(DHLO_OUT_OF_MEMORY, [] { return std::string("scratch: size overflows"); });
    const int64_t stride = dhlo::scratch_stride(scratch_bytes);
    if (!self->grow(&common.scratch, stride * self->num_threads, &common.scratch_bytes, "scratch")) {
      common.scratch_stride = 0;
      return self->failure;
    }
    common.scratch_stride = stride;
  }
  grain = std::max<int64_t>(grain, 1);
  const bool limited = self->stop.limited();
  if (count <= grain || (self->num_threads == 1 && !limited)) {
    fn(args, 0, count, 0, common.scratch.data());
    return 0;
  }
  const int64_t most = self->num_threads * (limited ? kFineChunksPerThread : kChunksPerThread);
  const int64_t chunks = std::min({count / grain, most, dhlo::Pool::kMaxChunks});
  return self->run_chunks(
      {fn, args, count, chunks, common.scratch.data(), common.scratch_stride, &self->stop, self->tracing});
}

int32_t dhlo_session::run_chunks(const Launch& work) noexcept {
  if (work.chunks > 1 && host_threads != nullptr) {
    const char* wrong = host_threads->run(work, common->program->parallel);
    if (wrong != nullptr) return record(DHLO_HOST, [wrong] { return std::string(wrong); });
  } else if (work.chunks == 1 || num_threads == 1 || !common->program->pool->run(work)) {
    if (!stop.limited()) {
      work.fn(work.args, 0, work.count, 0, work.scratch);
      return 0;
    }
    for (int64_t chunk = 0; chunk < work.chunks; ++chunk) work.run_chunk(chunk, 0);
  }
  return stop.asked() ? record_stop() : 0;  // some chunks may have been left out
}

int32_t dhlo_session::record_stop() noexcept {
  const dhlo_status why = stop.why();
  return record(why, [&] {
    if (why == DHLO_CANCELLED) return std::string("the run was cancelled");
    return "the run took longer than its timeout of " + std::to_string(stop.timeout_ns()) + " ns";
  });
}

int32_t dhlo_session::serve_poll(dhlo_abi_call* call, int32_t last) {
  auto* self = static_cast<dhlo_session*>(call);
  if (last != 0 ? self->stop.finish() : !self->stop.asked()) return 0;
  return self->record_stop();
}

// With profile or trace.
int32_t dhlo_session::serve_watched_launch(dhlo_abi_call* call, dhlo_kernel fn, const int64_t* args, int64_t count,
                                           int64_t grain, int64_t scratch_bytes, int64_t launch) {
  auto* self = static_cast<dhlo_session*>(call);
  const bool known = launch >= 0 && launch < self->model->code->num_launches;
  const char* name = known ? self->model->code->launches[launch] : nullptr;
  const dhlo::LaunchTrace tracer = self->tracer(name, launch);
  self->tracing = self->trace != nullptr ? &tracer : nullptr;
  const int64_t start = dhlo::now();
  const int32_t status = serve_launch(call, fn, args, count, grain, scratch_bytes, launch);
  self->tracing = nullptr;
  if (known && self->profiled) {
    dhlo_launch_profile& figures = self->profile[static_cast<size_t>(launch)];
    ++figures.count;
    figures.nanoseconds += dhlo::now() - start;
  }
  if (self->trace != nullptr) tracer.tell(DHLO_TRACE_LAUNCH, start, std::max<int64_t>(count, 0), 0, status);
  return status;
}

dhlo::LaunchTrace dhlo_session::tracer(const char* name, int64_t index) const {
  return {trace, trace_ctx, this, name != nullptr ? name : "", static_cast<int64_t>(common->run_number), index};
}

void dhlo_session::trace_run(int64_t begin_ns, dhlo_status status) const {
  const char *entry = model->entry->name, *name = model->program->abi->name;
  tracer(entry != nullptr && *entry != 0 ? entry : name, -1).tell(DHLO_TRACE_RUN, begin_ns, 0, 0, status);
}

int32_t dhlo_session::serve_fail(dhlo_abi_call* call, int64_t check, int64_t expected, int64_t got) {
  auto* self = static_cast<dhlo_session*>(call);
  const dhlo_abi_entry& entry = *self->model->entry;
  if (check < 0 || check >= entry.num_checks)
    return self->record(DHLO_INTERNAL, [] { return std::string("the model failed an unknown check"); });
  return self->record(dhlo::check_status(entry.checks[check]),
                      [&] { return dhlo::describe_check(entry.checks[check], expected, got); });
}

std::string dhlo_session::describe(const dhlo::Given& g) const {
  if (g.kind == dhlo::Given::kState) return "the session's state";
  const bool output = g.kind == dhlo::Given::kOutput;
  const dhlo_abi_value* values = output ? model->entry->outputs : model->entry->inputs;
  return dhlo::describe_value(output ? "output" : "input", g.index, &values[g.index]);
}

// Memory that the run writes must be nobody else's: kernels read and write in any order. Throws Error.
void dhlo_session::check_sharing(const dhlo_tensor* inputs) {
  const dhlo_abi_entry& entry = *model->entry;
  given.clear();
  for (int64_t i = 0; i < entry.num_inputs; ++i) {
    const int64_t grows = writes.empty() ? kReads : writes[static_cast<size_t>(i)];
    given.push_back({{}, i, dhlo::Given::kInput, grows != kReads});
    dhlo::Given& g = given.back();
    dhlo_tensor all = inputs[i];
    int64_t sizes[DHLO_ABI_MAX_RANK];
    if (grows > 0 && grows < all.rank && all.strides != nullptr) {
      // The whole of the buffer whose first part is given.
      std::copy_n(all.sizes, all.rank, sizes);
      sizes[grows] = std::max(sizes[grows], all.strides[grows - 1] / std::max<int64_t>(all.strides[grows], 1));
      all.sizes = sizes;
      check_addressable(entry, all, i);
      if (all.capacity != 0) check_capacity(entry, all, i);
    }
    dhlo::find_region(all, dhlo_dtype_bytes(all.dtype), &g.region);
    if (g.written && g.region.folded)
      throw Error(DHLO_INVALID_ARGUMENT,
                  describe(g) + " is updated by the model, but several of its elements share memory, by its strides");
  }
  if (counters.state_bytes > 0)
    given.push_back({dhlo::whole_region(state, counters.state_bytes), -1, dhlo::Given::kState, true});
  // What the session holds for an output is written, too, and may move: an output of the last run is no input of this
  // one.
  for (int64_t i = 0; i < entry.num_outputs; ++i) {
    const Output& out = outputs[static_cast<size_t>(i)];
    const bool bound = out.bound != nullptr;
    if (!bound && out.owned.data() == nullptr) continue;
    given.push_back({dhlo::whole_region(bound ? out.bound : out.owned.data(), bound ? out.capacity : out.owned.bytes()),
                     i, dhlo::Given::kOutput, true});
  }
  // In the order of their addresses, so that only neighbours are compared.
  std::sort(given.begin(), given.end(),
            [](const dhlo::Given& a, const dhlo::Given& b) { return a.region.begin < b.region.begin; });
  for (size_t i = 0; i < given.size(); ++i) {
    for (size_t j = i + 1; j < given.size() && given[j].region.begin < given[i].region.end; ++j) {
      const dhlo::Given &a = given[i], &b = given[j];
      if ((!a.written && !b.written) || !dhlo::share_bytes(a.region, b.region)) continue;
      const dhlo::Given &written = a.written ? a : b, &other = a.written ? b : a;
      throw Error(DHLO_INVALID_ARGUMENT, describe(written) + " is written by the model, but shares memory with " +
                                             describe(other) + (other.written ? ", which is written, too" : ""));
    }
  }
}

// Whether an input lies among what the session holds for states and outputs: the first look, where nothing else is
// written.
bool dhlo_session::reaches_own_memory(const dhlo_tensor* inputs) const {
  const uint8_t *first = nullptr, *last = nullptr;
  if (counters.state_bytes > 0) {
    first = state;
    last = state + counters.state_bytes;
  }
  for (const Output& out : outputs) {
    if (out.owned.data() == nullptr) continue;
    first = first == nullptr ? out.owned.data() : std::min<const uint8_t*>(first, out.owned.data());
    last = std::max<const uint8_t*>(last, out.owned.data() + out.owned.bytes());
  }
  for (int64_t i = 0; i < model->entry->num_inputs; ++i) {
    dhlo::Region region;
    dhlo::find_region(inputs[i], dhlo_dtype_bytes(inputs[i].dtype), &region);
    if (region.begin < last && first < region.end) return true;
  }
  return false;
}

// Whether memory that the host gave for an output is used by nothing else of the run; records an error if not.
bool dhlo_session::is_free(int64_t index, const void* data, int64_t bytes) {
  const dhlo::Given output{dhlo::whole_region(data, bytes), index, dhlo::Given::kOutput, true};
  for (const dhlo::Given& other : given) {
    if ((other.kind == dhlo::Given::kOutput && other.index == index) || !dhlo::share_bytes(output.region, other.region))
      continue;
    record(DHLO_HOST,
           [&] { return describe(output) + ": the host gave memory that it shares with " + describe(other); });
    return false;
  }
  given.push_back(output);
  return true;
}

void dhlo_session::run_checked(const dhlo_tensor* inputs, int64_t num_inputs) {
  for (Output& out : outputs) out.produced = false;
  counters.arena_used = counters.output_used = 0;
  hook_bytes = scratch_asked = 0;
  starved = false;
  ++common->run_number;
  dhlo::check_inputs(*model->entry, inputs, num_inputs, true);
  for (int64_t i = 0; i < num_inputs; ++i) {
    check_addressable(*model->entry, inputs[i], i);
    if (inputs[i].capacity != 0) check_capacity(*model->entry, inputs[i], i);
  }
  const bool hooked = options.output != nullptr && !trusts_output_hook;
  const bool written = !writes.empty() || num_bound > 0 || hooked;
  const bool holds = counters.output_bytes > 0 || counters.state_bytes > 0;
  if (written || (holds && reaches_own_memory(inputs))) check_sharing(inputs);
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
