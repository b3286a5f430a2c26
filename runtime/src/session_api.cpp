// The C interface to sessions.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "async.hpp"
#include "session.hpp"
#include "snapshot.hpp"
#include "support.hpp"

using dhlo::Error;

namespace {

// Runs `body` while nobody else uses the session; its text goes to the session, that of a refusal to the thread.
template <class Body>
dhlo_status guard_session(const char* function, const dhlo_session* session, Body&& body) noexcept {
  if (session == nullptr)
    return dhlo::guard([&] { throw Error(DHLO_INVALID_ARGUMENT, std::string(function) + ": session is null"); },
                       dhlo::set_last_error);
  const dhlo::Claim claim(*session);
  if (!claim) return DHLO_BUSY;
  return dhlo::guard(body, [session](const char* text) {
    try {
      session->message = text;
    } catch (...) {
      session->message.clear();
    }
  });
}

void need(const void* pointer, const char* what) {
  if (pointer == nullptr) throw Error(DHLO_INVALID_ARGUMENT, std::string(what) + " is null");
}

dhlo::Output& find_output(dhlo_session* session, int64_t index) {
  if (index < 0 || index >= session->model->entry->num_outputs)
    throw Error(DHLO_INVALID_ARGUMENT,
                "output " + std::to_string(index) + ": the model has " + std::to_string(session->outputs.size()));
  return session->outputs[static_cast<size_t>(index)];
}

dhlo_session_options read_options(const dhlo_session_options* given) {
  const dhlo_session_options options =
      dhlo::read_struct(given, dhlo_session_options_init, offsetof(dhlo_session_options, output), "session options");
  if (options.max_bytes < 0)
    throw Error(DHLO_INVALID_ARGUMENT,
                "session options: max_bytes: expected 0 (no cap) or more, got " + std::to_string(options.max_bytes));
  return options;
}

// Options of a session that is made from another: it takes part in what that does, unless they say otherwise.
dhlo_session_options with_communicator(const dhlo_session_options* given, const dhlo_session& from) {
  dhlo_session_options options = read_options(given);
  if (options.communicator == nullptr) options.communicator = from.options.communicator;
  return options;
}

dhlo_run_options read_run_options(const dhlo_run_options* given) {
  const dhlo_run_options options =
      dhlo::read_struct(given, dhlo_run_options_init, sizeof(dhlo_run_options), "run options");
  if (options.timeout_ns < 0)
    throw Error(DHLO_INVALID_ARGUMENT,
                "run options: timeout_ns: expected 0 (none) or more, got " + std::to_string(options.timeout_ns));
  return options;
}

}  // namespace

void dhlo_session_options_init(dhlo_session_options* options) {
  if (options == nullptr) return;
  *options = dhlo_session_options{};
  options->struct_bytes = sizeof *options;
}

dhlo_status dhlo_session_create(dhlo_model* model, const dhlo_session_options* options, dhlo_session** out) {
  return dhlo::guard(
      [&] {
        need(model, "dhlo_session_create: model");
        need(out, "dhlo_session_create: out");
        *out = std::make_unique<dhlo_session>(model, read_options(options), nullptr).release();
      },
      dhlo::set_last_error);
}

dhlo_status dhlo_session_create_sharing(dhlo_session* session, dhlo_model* entry, const dhlo_session_options* options,
                                        dhlo_session** out) {
  return dhlo::guard(
      [&] {
        need(session, "dhlo_session_create_sharing: session");
        need(entry, "dhlo_session_create_sharing: entry");
        need(out, "dhlo_session_create_sharing: out");
        const dhlo::Claim claim(*session);
        if (!claim) throw Error(DHLO_BUSY, dhlo::kBusy);
        if (entry->program != session->model->program)
          throw Error(DHLO_INVALID_ARGUMENT, "the session and the entry are of different models");
        *out = std::make_unique<dhlo_session>(entry, with_communicator(options, *session), session->common).release();
      },
      dhlo::set_last_error);
}

dhlo_status dhlo_session_copy(const dhlo_session* session, const dhlo_session_options* options, dhlo_session** out) {
  return dhlo::guard(
      [&] {
        need(session, "dhlo_session_copy: session");
        need(out, "dhlo_session_copy: out");
        const dhlo::Claim claim(*session);
        if (!claim) throw Error(DHLO_BUSY, dhlo::kBusy);
        auto copy = std::make_unique<dhlo_session>(
            session->model, options != nullptr ? with_communicator(options, *session) : session->options, nullptr);
        copy->copy_state(*session);
        *out = copy.release();
      },
      dhlo::set_last_error);
}

void dhlo_session_destroy(dhlo_session* session) { delete session; }

dhlo_model* dhlo_session_model(const dhlo_session* session) { return session != nullptr ? session->model : nullptr; }

const char* dhlo_session_error(const dhlo_session* session) {
  return session != nullptr ? session->message.c_str() : "";
}

dhlo_status dhlo_session_run(dhlo_session* session, const dhlo_tensor* inputs, int64_t num_inputs) {
  if (session != nullptr) return session->run(inputs, num_inputs, {});
  dhlo::set_last_error("dhlo_session_run: session is null");
  return DHLO_INVALID_ARGUMENT;
}

void dhlo_run_options_init(dhlo_run_options* options) {
  if (options == nullptr) return;
  *options = dhlo_run_options{};
  options->struct_bytes = sizeof *options;
}

dhlo_status dhlo_session_run_with(dhlo_session* session, const dhlo_tensor* inputs, int64_t num_inputs,
                                  const dhlo_run_options* options) {
  if (options == nullptr) return dhlo_session_run(session, inputs, num_inputs);
  dhlo_run_options how;
  const dhlo_status status = guard_session("dhlo_session_run_with", session, [&] { how = read_run_options(options); });
  return status == DHLO_OK ? session->run(inputs, num_inputs, how) : status;
}

dhlo_status dhlo_session_run_async(dhlo_session* session, const dhlo_tensor* inputs, int64_t num_inputs,
                                   const dhlo_run_options* options, dhlo_done_fn done, void* ctx) {
  if (session == nullptr || done == nullptr || num_inputs < 0 || (num_inputs > 0 && inputs == nullptr)) {
    dhlo::set_last_error("dhlo_session_run_async: session, done or inputs is null, or num_inputs is negative");
    return DHLO_INVALID_ARGUMENT;
  }
  if (session->common->running.exchange(true, std::memory_order_acquire)) {
    dhlo::set_last_error(dhlo::kBusy);
    return DHLO_BUSY;
  }
  bool begun = false;
  const dhlo_status status = dhlo::guard(
      [&] {
        const dhlo_run_options how = read_run_options(options);
        dhlo::check_count(*session->model->entry, num_inputs);  // all of them are copied
        if (session->async == nullptr) session->async = std::make_shared<dhlo::AsyncRun>(session);
        begun = true;  // it has the claim now
        session->async->begin(inputs, num_inputs, how, done, ctx);
      },
      dhlo::set_last_error);
  if (!begun) session->common->running.store(false, std::memory_order_release);
  return status;
}

dhlo_status dhlo_session_cancel(dhlo_session* session) {
  if (session != nullptr) return session->stop.cancel(), DHLO_OK;
  dhlo::set_last_error("dhlo_session_cancel: session is null");
  return DHLO_INVALID_ARGUMENT;
}

dhlo_status dhlo_session_bind_output(dhlo_session* session, int64_t index, void* data, int64_t capacity) {
  return guard_session("dhlo_session_bind_output", session, [&] {
    dhlo::Output& output = find_output(session, index);
    if (data != nullptr && capacity < 0)
      throw Error(DHLO_INVALID_ARGUMENT, "output " + std::to_string(index) + ": capacity is negative");
    if (data != nullptr && reinterpret_cast<uintptr_t>(data) > UINTPTR_MAX - static_cast<uintptr_t>(capacity))
      throw Error(DHLO_INVALID_ARGUMENT,
                  "output " + std::to_string(index) + ": its memory reaches beyond what can be addressed");
    session->num_bound += (data != nullptr) - (output.bound != nullptr);
    output.bound = data;
    output.capacity = data != nullptr ? capacity : 0;
  });
}

dhlo_status dhlo_session_output(dhlo_session* session, int64_t index, dhlo_tensor* out) {
  return guard_session("dhlo_session_output", session, [&] {
    need(out, "out");
    const dhlo::Output& output = find_output(session, index);
    if (!output.produced)
      throw Error(DHLO_INVALID_ARGUMENT, "output " + std::to_string(index) + ": there is no successful last run");
    const int64_t capacity = output.bound != nullptr              ? output.capacity
                             : output.data == output.owned.data() ? output.owned.bytes()
                                                                  : 0;
    *out = {output.data, output.sizes, nullptr, static_cast<int32_t>(session->model->entry->outputs[index].dtype),
            output.rank, capacity};
  });
}

dhlo_status dhlo_session_read_state(dhlo_session* session, const char* name, void* data, int64_t bytes) {
  return guard_session("dhlo_session_read_state", session, [&] {
    const dhlo_abi_state& state = session->find_state(name, bytes);
    if (bytes == 0) return;
    need(data, "data");
    std::memmove(data, session->state + state.offset, static_cast<size_t>(bytes));  // it may be of the state itself
  });
}

dhlo_status dhlo_session_write_state(dhlo_session* session, const char* name, const void* data, int64_t bytes) {
  return guard_session("dhlo_session_write_state", session, [&] {
    const dhlo_abi_state& state = session->find_state(name, bytes);
    if (bytes == 0) return;
    need(data, "data");
    std::memmove(session->state + state.offset, data, static_cast<size_t>(bytes));
  });
}

dhlo_status dhlo_session_state(dhlo_session* session, const char* name, dhlo_tensor* out) {
  return guard_session("dhlo_session_state", session, [&] {
    need(out, "out");
    const dhlo_abi_state& state = session->find_state(name);
    *out = {session->state + state.offset,    state.sizes, nullptr, static_cast<int32_t>(state.dtype),
            static_cast<int32_t>(state.rank), state.bytes};
  });
}

dhlo_status dhlo_session_reset_state(dhlo_session* session) {
  return guard_session("dhlo_session_reset_state", session, [&] { session->common->reset_state(); });
}

int64_t dhlo_session_snapshot_bytes(const dhlo_session* session) {
  return session != nullptr ? dhlo::snapshot_bytes(*session->model->program->abi) : 0;
}

dhlo_status dhlo_session_snapshot(const dhlo_session* session, void* data, int64_t bytes) {
  return guard_session("dhlo_session_snapshot", session, [&] {
    need(data, "data");
    dhlo::write_snapshot(*session, data, bytes);
  });
}

dhlo_status dhlo_session_restore(dhlo_session* session, const void* data, int64_t bytes) {
  return guard_session("dhlo_session_restore", session, [&] {
    need(data, "data");
    dhlo::read_snapshot(session, data, bytes);
  });
}

dhlo_status dhlo_session_seed(dhlo_session* session, uint64_t seed) {
  return guard_session("dhlo_session_seed", session, [&] { session->seed(seed); });
}

dhlo_status dhlo_session_trim(dhlo_session* session) {
  return guard_session("dhlo_session_trim", session, [&] {
    for (dhlo::Output& output : session->outputs) output.produced = false;
    session->trim();
  });
}

dhlo_status dhlo_session_counters(const dhlo_session* session, dhlo_counters* out) {
  return dhlo::guard(
      [&] {
        need(session, "dhlo_session_counters: session");
        need(out, "dhlo_session_counters: out");
        dhlo_counters counters = session->counters;
        counters.arena_bytes = session->common->arena_bytes;
        counters.scratch_bytes = session->common->scratch_bytes;
        dhlo::fill(out, counters, "counters");
      },
      dhlo::set_last_error);
}

dhlo_status dhlo_session_set_profile(dhlo_session* session, int32_t mode) {
  return guard_session("dhlo_session_set_profile", session, [&] {
    if (mode < 0 || mode > 2)
      throw Error(DHLO_INVALID_ARGUMENT, "profile mode: expected 0, 1 or 2, got " + std::to_string(mode));
    session->set_profile(mode != 0);
    if (mode == 2) std::fill(session->profile.begin(), session->profile.end(), dhlo_launch_profile{});
  });
}

dhlo_status dhlo_session_profile(const dhlo_session* session, int64_t launch, dhlo_launch_profile* out) {
  return guard_session("dhlo_session_profile", session, [&] {
    need(out, "out");
    if (launch < 0 || launch >= session->model->code->num_launches)
      throw Error(DHLO_INVALID_ARGUMENT, "launch " + std::to_string(launch) + ": the model has " +
                                             std::to_string(session->model->code->num_launches));
    const bool measured = static_cast<size_t>(launch) < session->profile.size();
    dhlo::fill(out, measured ? session->profile[static_cast<size_t>(launch)] : dhlo_launch_profile{}, "profile");
  });
}

dhlo_status dhlo_session_set_trace(dhlo_session* session, dhlo_trace_fn trace, void* ctx) {
  return guard_session("dhlo_session_set_trace", session, [&] { session->set_trace(trace, ctx); });
}
