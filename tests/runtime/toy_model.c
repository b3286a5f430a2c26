/* A model written by hand as the compiler would emit it, to test the runtime without the compiler.
 *
 * inputs   x: float32 (n, 4) with any strides; mode: int64 ()
 * outputs  y: float32 (n, 4) = 2 x + bias; positive: float32 (k), x's positive values in order; step: int64 (), calls
 * so far mode     0 ordinary; 1 fails an assertion; 2 fails without a reason; 3 leaves outputs out; 4 fails an index
 * check; 6 loops until it is stopped; 7 runs toy_steps (an address in state "gate") on 640 items, a chunk at least one;
 * 8 the same after the point from which nothing stops the run; 11 on 16 items, a chunk at least three; 5 holds the caller until toy_gate (an address in state "gate") becomes nonzero
 *
 * With -DTOY_ADD_ONE: x: float32 (n), y: float32 (n) = x + 1 instead. TOY_CPU_FEATURES and TOY_VERSION override fields.
 */
#include <sched.h>
#include <stddef.h>

#include "dhlo/abi.h"

#ifndef TOY_CPU_FEATURES
#define TOY_CPU_FEATURES ""
#endif
#ifndef TOY_VERSION
#define TOY_VERSION DHLO_ABI_VERSION
#endif

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#endif

static const int64_t kUnknown[2] = {-1, 4};

#ifdef TOY_ADD_ONE

static void add_one(const int64_t* args, int64_t begin, int64_t end, int64_t worker, void* scratch) {
  const float* x = (const float*)args[0];
  float* y = (float*)args[1];
  (void)worker;
  (void)scratch;
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] + 1.0f;
}

static int32_t run(dhlo_abi_call* call, const dhlo_tensor* in) {
  if (in[0].rank != 1) return call->fail(call, 0, 1, in[0].rank);
  if (in[0].dtype != DHLO_F32) return call->fail(call, 1, DHLO_F32, in[0].dtype);
  void* out = call->output(call, 0, 1, in[0].sizes);
  if (out == NULL) return 1;
  const int64_t args[2] = {(int64_t)in[0].data, (int64_t)out};
  return call->launch(call, add_one, args, in[0].sizes[0], 8192, 0, 0);
}

static const char* const kDims[] = {"n"};
static const dhlo_abi_value kInputs[] = {{"x", DHLO_F32, 1, kUnknown, kDims}};
static const dhlo_abi_value kOutputs[] = {{"y", DHLO_F32, 1, kUnknown, kDims}};
static const dhlo_abi_check kChecks[] = {{DHLO_CHECK_RANK, 0, "input 0 'x'"}, {DHLO_CHECK_DTYPE, 0, "input 0 'x'"}};
static const char* const kLaunches[] = {"add_one"};
static const dhlo_abi_state* const kStates = NULL;
enum { kNumStates = 0, kStateBytes = 0, kConstantsBytes = 0, kSegments = 0 };

#else

struct constants {
  float bias[4];
  int64_t zero;
};

static void gather(const int64_t* args, int64_t begin, int64_t end, int64_t worker, void* scratch) {
  const float* x = (const float*)args[0];
  float* to = (float*)args[1];
  (void)worker;
  (void)scratch;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t j = 0; j < 4; ++j) to[i * 4 + j] = x[i * args[2] + j * args[3]];
}

/* Goes through its scratch, so that shared or too small scratch shows. */
static void scale(const int64_t* args, int64_t begin, int64_t end, int64_t worker, void* scratch) {
  const float *x = (const float*)args[0], *bias = (const float*)args[2];
  float *y = (float*)args[1], *row = (float*)scratch;
  ((int64_t*)args[3])[worker] += end - begin; /* rows that each worker did */
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < 4; ++j) row[j] = 2.0f * x[i * 4 + j];
    for (int64_t j = 0; j < 4; ++j) y[i * 4 + j] = row[j] + bias[j];
  }
}

static void hold(const int64_t* args, int64_t begin, int64_t end, int64_t worker, void* scratch) {
  (void)begin;
  (void)end;
  (void)worker;
  (void)scratch;
  while (__atomic_load_n((int64_t*)args[0], __ATOMIC_ACQUIRE) == 0) sched_yield();
}

struct toy_steps {
  int64_t items, stop_at; /* done so far; how many until `cancel` is set */
  int32_t cancel, chunks; /* chunks: done so far */
};

static void step(const int64_t* args, int64_t begin, int64_t end, int64_t worker, void* scratch) {
  struct toy_steps* steps = (struct toy_steps*)args[0];
  (void)worker;
  (void)scratch;
  __atomic_add_fetch(&steps->chunks, 1, __ATOMIC_ACQ_REL);
  for (int64_t i = begin; i < end; ++i)
    if (__atomic_add_fetch(&steps->items, 1, __ATOMIC_ACQ_REL) == steps->stop_at)
      __atomic_store_n(&steps->cancel, 1, __ATOMIC_RELEASE);
}

enum { kRankX, kDtypeX, kWidth, kRows, kDtypeMode, kMode, kAssert, kIndex };

static int32_t check(dhlo_abi_call* call, const dhlo_tensor* in) {
  if (in[0].rank != 2) return call->fail(call, kRankX, 2, in[0].rank);
  if (in[0].dtype != DHLO_F32) return call->fail(call, kDtypeX, DHLO_F32, in[0].dtype);
  if (in[0].sizes[1] != 4) return call->fail(call, kWidth, 4, in[0].sizes[1]);
  if (in[0].sizes[0] > 1000000) return call->fail(call, kRows, 1000000, in[0].sizes[0]);
  if (in[1].dtype != DHLO_I64) return call->fail(call, kDtypeMode, DHLO_I64, in[1].dtype);
  if (in[1].data == NULL) return 0; /* a plan without the number */
  const int64_t mode = *(const int64_t*)in[1].data;
  if (mode < 0) return call->fail(call, kMode, 0, mode);
  if (mode == 1) return call->fail(call, kAssert, 0, 0);
  if (mode == 4) return call->fail(call, kIndex, 7, 9);
  return mode == 2;
}

static int64_t arena_bytes(int64_t rows) { return rows * 16 + 64 * 64 * 8; }

static int32_t run(dhlo_abi_call* call, const dhlo_tensor* in) {
  int32_t status = check(call, in);
  if (status != 0) return status;
  const struct constants* constants = (const struct constants*)call->constants;
  const int64_t rows = in[0].sizes[0], mode = call->plan != NULL ? 0 : *(const int64_t*)in[1].data;
  const int64_t *strides = in[0].strides, stride0 = strides ? strides[0] : 4, stride1 = strides ? strides[1] : 1;
  if (mode == 5) {
    const int64_t args[1] = {*(const int64_t*)(call->state + 8)};
    if ((status = call->launch(call, hold, args, 1, 1, 0, 2)) != 0) return status;
  }
  while (mode == 6)
    if ((status = call->poll(call, 0)) != 0) return status;
  if (mode == 8 && (status = call->poll(call, 1)) != 0) return status;
  if (mode == 7 || mode == 8 || mode == 11) {
    const int64_t args[1] = {*(const int64_t*)(call->state + 8)}, items = mode == 11 ? 16 : 640,
                  grain = mode == 11 ? 3 : 1;
    if ((status = call->launch(call, step, args, items, grain, 0, 3)) != 0) return status;
  }
  uint8_t* arena = call->arena(call, 0, arena_bytes(rows));
  if (arena == NULL) return 1;
  int64_t* work = (int64_t*)(arena + rows * 16);
  for (int64_t i = 0; call->plan == NULL && i < call->num_threads; ++i) work[i] = 0;
  const int64_t gather_args[4] = {(int64_t)in[0].data, (int64_t)arena, stride0, stride1};
  if ((status = call->launch(call, gather, gather_args, rows, 64, 0, 0)) != 0) return status;
  if (mode == 3) return 0;
  float* y = call->output(call, 0, 2, in[0].sizes);
  if (y == NULL) return 1;
  const int64_t scale_args[4] = {(int64_t)arena, (int64_t)y, (int64_t)constants->bias, (int64_t)work};
  if ((status = call->launch(call, scale, scale_args, rows, 64, 16, 1)) != 0) return status;
  if (call->plan != NULL) {
    call->plan[0] = rows * 16;
    call->plan[1] = 1;
    return call->output(call, 2, 0, NULL) == NULL;
  }
  int64_t done = 0;
  for (int64_t i = 0; i < call->num_threads; ++i) done += work[i];
  if (done != rows) return 1;
  const float* x = (const float*)arena;
  int64_t positive = 0;
  for (int64_t i = 0; i < rows * 4; ++i) positive += x[i] > 0;
  float* kept = call->arena(call, 1, positive * 4);
  if (kept == NULL) return 1;
  for (int64_t i = 0, k = 0; i < rows * 4; ++i)
    if (x[i] > 0) kept[k++] = x[i];
  float* out = call->output(call, 1, 1, &positive);
  if (out == NULL) return 1;
  for (int64_t i = 0; i < positive; ++i) out[i] = kept[i];
  int64_t* step = call->output(call, 2, 0, NULL);
  if (step == NULL) return 1;
  *step = ++*(int64_t*)call->state;
  return 0;
}

static const char *const kDimsX[] = {"n", "4"}, *const kDimsPositive[] = {"u0"};
static const dhlo_abi_value kInputs[] = {{"x", DHLO_F32, 2, kUnknown, kDimsX}, {"mode", DHLO_I64, 0, NULL, NULL}};
static const dhlo_abi_value kOutputs[] = {{"y", DHLO_F32, 2, kUnknown, kDimsX},
                                          {"positive", DHLO_F32, 1, kUnknown, kDimsPositive},
                                          {"step", DHLO_I64, 0, NULL, NULL}};
static const dhlo_abi_check kChecks[] = {
    {DHLO_CHECK_RANK, 0, "input 0 'x'"},
    {DHLO_CHECK_DTYPE, 0, "input 0 'x'"},
    {DHLO_CHECK_EQUAL, 0, "input 0 'x' dim 1"},
    {DHLO_CHECK_MAX, 0, "input 0 'x' dim 0 (n)"},
    {DHLO_CHECK_DTYPE, 1, "input 1 'mode'"},
    {DHLO_CHECK_MIN, 1, "input 1 'mode'"},
    {DHLO_CHECK_ASSERT, -1, "mode must not be one"},
    {DHLO_CHECK_INDEX, -1, "embedding"},
};
static const char* const kLaunches[] = {"gather", "scale", "hold", "step"};
static const dhlo_abi_state kStates[] = {{"step", 0, 8, 16, DHLO_I64, 0, NULL}, {"gate", 8, 8, 16, DHLO_I64, 0, NULL}};
#ifndef TOY_CONSTANTS_BYTES
#define TOY_CONSTANTS_BYTES 24
#endif
enum { kNumStates = 2, kStateBytes = 16, kConstantsBytes = TOY_CONSTANTS_BYTES, kSegments = 2 };

#endif

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array[0])))

static const dhlo_abi_symbol kSymbols[] = {{"n", 0, 1000000}};
static const dhlo_abi_level kLevels[] = {{"", TOY_CPU_FEATURES}};
static const dhlo_abi_code kCode[] = {{run, COUNT(kLaunches), kLaunches, kSegments}};
static const dhlo_abi_entry kEntries[] = {{"", "{\"toy\": true}", kCode, COUNT(kInputs), kInputs, COUNT(kOutputs),
                                           kOutputs, COUNT(kChecks), kChecks, 0, NULL, NULL, COUNT(kSymbols), kSymbols,
                                           NULL, 0, NULL, 0, NULL}};

EXPORT extern const dhlo_abi_model dhlo_model_v1;
const dhlo_abi_model dhlo_model_v1 = {
    DHLO_ABI_MAGIC, TOY_VERSION, sizeof(dhlo_abi_model), "toy",    "toy 1.0",
    COUNT(kLevels), kLevels,     COUNT(kEntries),        kEntries, kNumStates,
    kStates,        kStateBytes, kConstantsBytes,
};
