// The C interface of the engine.
#include <string>

#include "engine.hpp"
#include "status.hpp"

struct dhlo_engine : dhlo::serve::Engine {
  using Engine::Engine;
};

namespace dhlo::serve {
namespace {

thread_local std::string last_error;

void set_last_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
}

template <class Body>
dhlo_status guard(Body&& body) noexcept {
  return dhlo::guard(std::forward<Body>(body), set_last_error);
}

void need(const void* pointer, const char* what) {
  if (pointer == nullptr) refuse(std::string(what) + " is null");
}

}  // namespace
}  // namespace dhlo::serve

using dhlo::serve::guard;
using dhlo::serve::need;

const char* dhlo_serve_last_error(void) { return dhlo::serve::last_error.c_str(); }

void dhlo_engine_options_init(dhlo_engine_options* options) {
  if (options == nullptr) return;
  *options = dhlo_engine_options{};
  options->struct_bytes = sizeof *options;
  options->own_thread = 1;
  options->max_step_tokens = 256;
  options->max_waiting = 1024;
  options->prefix_cache = 1;
  options->draft_tokens = 8;
  options->draft_branches = 4;
  options->evict_sinks = 1;
  options->evict_recent = 1;
}

dhlo_status dhlo_engine_create(dhlo_model* model, const dhlo_engine_options* options, dhlo_engine** out) {
  return guard([&] {
    need(model, "dhlo_engine_create: model");
    need(out, "dhlo_engine_create: out");
    *out = new dhlo_engine(model, dhlo::read_struct(options, dhlo_engine_options_init,
                                                    offsetof(dhlo_engine_options, event_ctx) + sizeof(void*),
                                                    "dhlo_engine_create: options"));
  });
}

dhlo_status dhlo_engine_follow(dhlo_model* model, const dhlo_engine_options* options) {
  return guard([&] {
    need(model, "dhlo_engine_follow: model");
    const dhlo_engine_options given =
        dhlo::read_struct(options, dhlo_engine_options_init, offsetof(dhlo_engine_options, event_ctx) + sizeof(void*),
                          "dhlo_engine_follow: options");
    need(given.communicator, "dhlo_engine_follow: communicator");
    if (given.peer_timeout_ns < 0) dhlo::serve::refuse("dhlo_engine_follow: peer_timeout_ns is negative");
    dhlo::serve::follow(model, *given.communicator, dhlo::serve::peer_timeout(given.peer_timeout_ns));
  });
}

dhlo_status dhlo_engine_check_health(const dhlo_engine* engine) {
  return guard([&] {
    need(engine, "dhlo_engine_check_health: engine");
    engine->check_health();
  });
}

dhlo_status dhlo_engine_close(dhlo_engine* engine) {
  return guard([&] {
    need(engine, "dhlo_engine_close: engine");
    engine->close();
  });
}

void dhlo_engine_destroy(dhlo_engine* engine) {
  if (engine != nullptr && engine->may_destroy()) delete engine;
}

void dhlo_sampling_init(dhlo_sampling* sampling) {
  if (sampling == nullptr) return;
  *sampling = dhlo_sampling{};
  sampling->struct_bytes = sizeof *sampling;
  sampling->max_tokens = 16;
  sampling->temperature = 1;
  sampling->top_p = 1;
  sampling->repetition_penalty = 1;
  sampling->n = 1;
  sampling->logprobs = -1;
  sampling->speculate = 1;
  sampling->length_penalty = 1;
}

dhlo_status dhlo_engine_submit(dhlo_engine* engine, const int32_t* prompt, int64_t num_tokens,
                               const dhlo_sampling* sampling, uint64_t* out) {
  return guard([&] {
    need(engine, "dhlo_engine_submit: engine");
    need(out, "dhlo_engine_submit: out");
    *out = engine->submit(prompt, num_tokens,
                          dhlo::read_struct(sampling, dhlo_sampling_init, offsetof(dhlo_sampling, user) + sizeof(void*),
                                            "dhlo_engine_submit: sampling"));
  });
}

dhlo_status dhlo_engine_cancel(dhlo_engine* engine, uint64_t request) {
  return guard([&] {
    need(engine, "dhlo_engine_cancel: engine");
    engine->cancel(request);
  });
}

dhlo_status dhlo_engine_poll(dhlo_engine* engine, int64_t timeout_ns, const dhlo_event* const** events,
                             int64_t* count) {
  return guard([&] {
    need(engine, "dhlo_engine_poll: engine");
    need(events, "dhlo_engine_poll: events");
    need(count, "dhlo_engine_poll: count");
    engine->poll(timeout_ns, events, count);
  });
}

dhlo_status dhlo_engine_step(dhlo_engine* engine, int32_t* worked) {
  return guard([&] {
    need(engine, "dhlo_engine_step: engine");
    const bool did = engine->step();
    if (worked != nullptr) *worked = did ? 1 : 0;
  });
}

dhlo_status dhlo_engine_drain(dhlo_engine* engine, int64_t timeout_ns) {
  return guard([&] {
    need(engine, "dhlo_engine_drain: engine");
    if (!engine->drain(timeout_ns)) throw dhlo::Error(DHLO_DEADLINE, "the time is over: requests are in work");
  });
}

void dhlo_lora_pair_init(dhlo_lora_pair* pair) {
  if (pair == nullptr) return;
  *pair = dhlo_lora_pair{};
  pair->struct_bytes = sizeof *pair;
  pair->dtype = DHLO_F32;
  pair->scale = 1;
}

dhlo_status dhlo_engine_load_adapter(dhlo_engine* engine, const char* name, const dhlo_lora_pair* pairs,
                                     int64_t num_pairs) {
  return guard([&] {
    need(engine, "dhlo_engine_load_adapter: engine");
    need(name, "dhlo_engine_load_adapter: name");
    engine->load_adapter(name, pairs, num_pairs);
  });
}

dhlo_status dhlo_engine_unload_adapter(dhlo_engine* engine, const char* name) {
  return guard([&] {
    need(engine, "dhlo_engine_unload_adapter: engine");
    need(name, "dhlo_engine_unload_adapter: name");
    engine->unload_adapter(name);
  });
}

dhlo_status dhlo_engine_get_stats(const dhlo_engine* engine, dhlo_engine_stats* out) {
  return guard([&] {
    need(engine, "dhlo_engine_get_stats: engine");
    need(out, "dhlo_engine_get_stats: out");
    dhlo::fill(out, engine->stats(), "dhlo_engine_get_stats: out");
  });
}
