// What compiled code asks for during a run: memory, launches, the end of it. And the session's memory, within its cap.
#include <algorithm>

#include "session.hpp"
#include "support.hpp"

using dhlo::Block;
using dhlo::Launch;
using dhlo::Output;

namespace {

// Chunks a thread gets at most: enough to even out threads that start late, few enough that claiming costs nothing; and
// in runs that somebody may want to stop.
constexpr int64_t kChunksPerThread = 4;
constexpr int64_t kFineChunksPerThread = 64;
// The result for an empty tensor: aligned, not null, never dereferenced.
alignas(64) uint8_t empty_block[64];

}  // namespace

// ------------------------------------------------------------------ memory
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
  const bool capped = max_bytes != dhlo::kNoCap;
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
    record(DHLO_HOST, [&] { return std::string(what) + ": " + dhlo::kMisaligned; });
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

// ------------------------------------------------------------------ launches
int32_t dhlo_session::serve_launch(dhlo_abi_call* call, dhlo_kernel fn, const int64_t* args, int64_t count,
                                   int64_t grain, int64_t scratch_bytes, int64_t) {
  auto* self = static_cast<dhlo_session*>(call);
  ++self->counters.launches;
  if (self->stop.asked()) return self->record_stop();
  if (count <= 0) return 0;
  dhlo::Common& common = *self->common;
  self->scratch_asked = std::max(self->scratch_asked, scratch_bytes);
  if (scratch_bytes > common.scratch_stride) {
    if (scratch_bytes > dhlo::kNoCap / 2048)  // of at most 1024 threads
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
  int64_t chunks = std::min({count / grain, most, dhlo::Pool::kMaxChunks});
  // As many for each thread, unless they are single items: five for two threads take as long as six.
  if (chunks > self->num_threads && chunks < count) chunks -= chunks % self->num_threads;
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
