// The C interface to sessions.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "session.hpp"
#include "support.hpp"

using dhlo::Error;

namespace {

template <class Body>
dhlo_status guard_session(dhlo_session* session, Body&& body) noexcept {
  return dhlo::guard(body, [session](const char* text) {
    try {
      session->message = text;
    } catch (...) {
      session->message.clear();
    }
  });
}

dhlo::Output& find_output(dhlo_session* session, int64_t index) {
  if (index < 0 || index >= session->model->abi->num_outputs)
    throw Error(DHLO_INVALID_ARGUMENT,
                "output " + std::to_string(index) + ": the model has " + std::to_string(session->outputs.size()));
  return session->outputs[static_cast<size_t>(index)];
}

}  // namespace

void dhlo_session_options_init(dhlo_session_options* options) {
  *options = dhlo_session_options{};
  options->struct_bytes = sizeof *options;
}

dhlo_status dhlo_session_create(dhlo_model* model, const dhlo_session_options* given, dhlo_session** out) {
  return dhlo::guard(
      [&] {
        if (model == nullptr || out == nullptr)
          throw Error(DHLO_INVALID_ARGUMENT, "dhlo_session_create: model or out is null");
        dhlo_session_options options;
        dhlo_session_options_init(&options);
        if (given != nullptr) {
          if (given->struct_bytes < offsetof(dhlo_session_options, output))
            throw Error(DHLO_INVALID_ARGUMENT,
                        "session options: struct_bytes is not set; use dhlo_session_options_init");
          std::memcpy(&options, given, std::min<size_t>(given->struct_bytes, sizeof options));
        }
        *out = std::make_unique<dhlo_session>(model, options).release();
      },
      dhlo::set_last_error);
}

void dhlo_session_destroy(dhlo_session* session) { delete session; }

dhlo_model* dhlo_session_model(const dhlo_session* session) { return session->model; }

const char* dhlo_session_error(const dhlo_session* session) { return session->message.c_str(); }

dhlo_status dhlo_session_run(dhlo_session* session, const dhlo_tensor* inputs, int64_t num_inputs) {
  return session->run(inputs, num_inputs);
}

dhlo_status dhlo_session_bind_output(dhlo_session* session, int64_t index, void* data, int64_t capacity) {
  return guard_session(session, [&] {
    dhlo::Output& output = find_output(session, index);
    if (data != nullptr && capacity < 0)
      throw Error(DHLO_INVALID_ARGUMENT, "output " + std::to_string(index) + ": capacity is negative");
    output.bound = data;
    output.capacity = data != nullptr ? capacity : 0;
  });
}

dhlo_status dhlo_session_output(dhlo_session* session, int64_t index, dhlo_tensor* out) {
  return guard_session(session, [&] {
    const dhlo::Output& output = find_output(session, index);
    if (!output.produced)
      throw Error(DHLO_INVALID_ARGUMENT, "output " + std::to_string(index) + ": there is no successful last run");
    *out = {output.data, output.sizes, nullptr, static_cast<int32_t>(session->model->abi->outputs[index].dtype),
            output.rank};
  });
}

dhlo_status dhlo_session_read_state(dhlo_session* session, const char* name, void* data, int64_t bytes) {
  return guard_session(session, [&] {
    const dhlo_abi_state& state = session->find_state(name, bytes);
    if (bytes > 0) std::memcpy(data, session->state + state.offset, static_cast<size_t>(bytes));
  });
}

dhlo_status dhlo_session_write_state(dhlo_session* session, const char* name, const void* data, int64_t bytes) {
  return guard_session(session, [&] {
    const dhlo_abi_state& state = session->find_state(name, bytes);
    if (bytes > 0) std::memcpy(session->state + state.offset, data, static_cast<size_t>(bytes));
  });
}

void dhlo_session_reset_state(dhlo_session* session) { session->reset_state(); }

void dhlo_session_seed(dhlo_session* session, uint64_t seed) { session->seed(seed); }

void dhlo_session_trim(dhlo_session* session) {
  for (dhlo::Output& output : session->outputs) output.produced = false;
  session->trim();
}

void dhlo_session_counters(const dhlo_session* session, dhlo_counters* out) { *out = session->counters; }

dhlo_status dhlo_session_set_profile(dhlo_session* session, int32_t mode) {
  return guard_session(session, [&] {
    if (mode < 0 || mode > 2)
      throw Error(DHLO_INVALID_ARGUMENT, "profile mode: expected 0, 1 or 2, got " + std::to_string(mode));
    session->set_profile(mode != 0);
    if (mode == 2) std::fill(session->profile.begin(), session->profile.end(), dhlo_launch_profile{});
  });
}

dhlo_status dhlo_session_profile(const dhlo_session* session, int64_t launch, dhlo_launch_profile* out) {
  if (launch < 0 || launch >= session->model->abi->num_launches) return DHLO_INVALID_ARGUMENT;
  const bool measured = static_cast<size_t>(launch) < session->profile.size();
  *out = measured ? session->profile[static_cast<size_t>(launch)] : dhlo_launch_profile{};
  return DHLO_OK;
}
