/* A host of release 1.0: built against the headers of that release, which lie beside it, and run with today's library.
 * Takes a model file: y = 2 x + calls so far, x: float32 (rows, 4), state "calls": float32 (). Prints what it finds, for
 * test_frozen.py to compare; exits with 1, and the status' name, where the model is refused. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "dhlo/runtime.h"

#define REQUIRE(condition)                                                             \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "host.c:%d: %s; %s\n", __LINE__, #condition, dhlo_last_error()); \
      return 2;                                                                        \
    }                                                                                  \
  } while (0)

struct seen {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  dhlo_status status;
  int spans, done;
};

static void on_trace(void* ctx, const dhlo_trace_event* event) {
  struct seen* seen = ctx;
  if (event->struct_bytes >= sizeof *event && event->kind == DHLO_TRACE_RUN) ++seen->spans;
}

static void on_done(void* ctx, dhlo_session* session, dhlo_status status) {
  struct seen* seen = ctx;
  (void)session;
  pthread_mutex_lock(&seen->mutex);
  seen->status = status;
  seen->done = 1;
  pthread_cond_signal(&seen->changed);
  pthread_mutex_unlock(&seen->mutex);
}

static void print_values(const char* kind, const dhlo_abi_value* value) {
  printf("%s %s %s [", kind, value->name, dhlo_dtype_name((int32_t)value->dtype));
  for (int64_t d = 0; d < value->rank; ++d) printf("%s%s", d ? ", " : "", value->dims[d]);
  printf("]\n");
}

static int run(dhlo_session* session, int64_t rows) {
  float data[64];
  const int64_t sizes[2] = {rows, 4};
  for (int64_t i = 0; i < rows * 4; ++i) data[i] = (float)i;
  const dhlo_tensor x = {.data = data, .sizes = sizes, .dtype = DHLO_F32, .rank = 2, .capacity = sizeof data};
  dhlo_tensor y;
  dhlo_plan plan = {.struct_bytes = sizeof plan};
  dhlo_shape shape;
  REQUIRE(dhlo_model_plan(dhlo_session_model(session), &x, 1, &shape, &plan) == DHLO_OK && shape.sizes[0] == rows);
  REQUIRE(plan.output_bytes == rows * 16);
  REQUIRE(dhlo_session_run(session, &x, 1) == DHLO_OK && dhlo_session_output(session, 0, &y) == DHLO_OK);
  printf("run");
  for (int64_t i = 0; i < rows * 4; ++i) printf(" %g", ((const float*)y.data)[i]);
  printf("\n");
  /* One too many columns. */
  const int64_t wrong[2] = {1, 5};
  const dhlo_tensor bad = {.data = data, .sizes = wrong, .dtype = DHLO_F32, .rank = 2};
  REQUIRE(dhlo_session_run(session, &bad, 1) == DHLO_CONTRACT && *dhlo_session_error(session) != 0);
  return 0;
}

static int stop_and_wait(dhlo_session* session, struct seen* seen) {
  float data[4] = {0};
  const int64_t sizes[2] = {1, 4};
  const dhlo_tensor x = {.data = data, .sizes = sizes, .dtype = DHLO_F32, .rank = 2};
  volatile int32_t cancel = 1;
  dhlo_run_options options;
  dhlo_run_options_init(&options);
  options.cancel = &cancel;
  REQUIRE(dhlo_session_run_with(session, &x, 1, &options) == DHLO_CANCELLED);
  REQUIRE(dhlo_session_run_async(session, &x, 1, NULL, on_done, seen) == DHLO_OK);
  pthread_mutex_lock(&seen->mutex);
  while (!seen->done) pthread_cond_wait(&seen->changed, &seen->mutex);
  pthread_mutex_unlock(&seen->mutex);
  REQUIRE(seen->status == DHLO_OK && seen->spans == 6);
  dhlo_tensor calls;
  REQUIRE(dhlo_session_state(session, "calls", &calls) == DHLO_OK && calls.capacity == 4 && calls.rank == 0);
  dhlo_counters counters = {.struct_bytes = sizeof counters};
  REQUIRE(dhlo_session_counters(session, &counters) == DHLO_OK);
  printf("calls %g, runs %lld, failed %lld\n", *(float*)calls.data, (long long)counters.runs,
         (long long)counters.failed_runs);
  return 0;
}

int main(int argc, char** argv) {
  struct seen seen = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, DHLO_OK, 0, 0};
  dhlo_env_options env_options;
  dhlo_model_options options;
  dhlo_env* env = NULL;
  dhlo_model* model = NULL;
  dhlo_session* session = NULL;
  dhlo_env_options_init(&env_options);
  env_options.num_threads = 2;
  env_options.trace = on_trace;
  env_options.trace_ctx = &seen;
  REQUIRE(argc == 2 && dhlo_env_create(&env_options, &env) == DHLO_OK);
  dhlo_model_options_init(&options);
  options.env = env;
  const dhlo_status status = dhlo_model_load_file(argv[1], &options, &model);
  if (status != DHLO_OK) {
    printf("%s: %s\n", dhlo_status_name(status), dhlo_last_error());
    return 1;
  }
  for (int64_t i = 0; i < dhlo_model_num_inputs(model); ++i) print_values("input", dhlo_model_input(model, i));
  for (int64_t i = 0; i < dhlo_model_num_outputs(model); ++i) print_values("output", dhlo_model_output(model, i));
  for (int64_t i = 0; i < dhlo_model_num_symbols(model); ++i) {
    const dhlo_abi_symbol* symbol = dhlo_model_symbol(model, i);
    printf("symbol %s %lld to %lld\n", symbol->name, (long long)symbol->min, (long long)symbol->max);
  }
  for (int64_t i = 0; i < dhlo_model_num_states(model); ++i) {
    const dhlo_abi_state* state = dhlo_model_state(model, i);
    printf("state %s %s rank %lld\n", state->name, dhlo_dtype_name((int32_t)state->dtype), (long long)state->rank);
  }
  REQUIRE(dhlo_model_num_checks(model) > 0 && dhlo_model_num_levels(model) == 1);
  REQUIRE(dhlo_session_create(model, NULL, &session) == DHLO_OK);
  int failed = run(session, 1) || run(session, 2);
  failed = failed || stop_and_wait(session, &seen);
  dhlo_session_destroy(session);
  dhlo_model_release(model);
  dhlo_env_release(env);
  return failed;
}
