/* The embedder's C interface: load a compiled model, run it with tensors of any shape, read outputs and errors.
 *
 * Conventions
 *   - Functions that can fail return dhlo_status; DHLO_OK is 0. Nothing throws, aborts or prints.
 *   - A null model, session or `out` is refused with DHLO_INVALID_ARGUMENT; getters give 0, "" or NULL for it.
 *   - Exceptions of the host's hooks go no further than the runtime, which takes them for the hook's failure.
 *   - After a failure the text is in dhlo_last_error() (model-level functions; per thread) or in
 *     dhlo_session_error() (session functions; per session). A failed call leaves the session usable.
 *   - Every `out` argument is written on success only, unless said otherwise.
 *   - Sizes and capacities are bytes unless said otherwise. Tensor layouts are those of dhlo_tensor in abi.h.
 *
 * Growth: all that is here stays as it is as long as the library's name does (libdhlo_runtime.so.1); symbols have the
 * version of the release that brought them. Only fields, functions and values of enums are added:
 *   - Structs that may grow start with `struct_bytes`, and new fields come last. Option structs: fill them with the
 *     matching *_init function, then set fields. Structs that a function fills: set struct_bytes to the sizeof before
 *     the call; fields that the library doesn't know are set to 0. What no struct's size can be (above 4096, or no
 *     multiple of 8) is DHLO_INVALID_ARGUMENT.
 *   - dhlo_abi_* structs are given by address, and may grow behind their last field. Never copy arrays of them.
 *   - dhlo_tensor, dhlo_shape, dhlo_allocator and dhlo_parallel never change: they lie in arrays and other structs.
 *   - Take values of enums that you don't know for failures, or skip them.
 */
#ifndef DHLO_RUNTIME_H
#define DHLO_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "dhlo/abi.h"

#if defined(__GNUC__)
#define DHLO_API __attribute__((visibility("default")))
#else
#define DHLO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DHLO_RUNTIME_VERSION_MAJOR 0
#define DHLO_RUNTIME_VERSION_MINOR 1
#define DHLO_RUNTIME_VERSION_PATCH 0

typedef int32_t dhlo_status;
enum {
  DHLO_OK = 0,
  DHLO_INVALID_ARGUMENT = 1, /* the call itself is wrong: count, null data, negative size, unknown name */
  DHLO_CONTRACT = 2,         /* the inputs break the model's contract, or an assertion of the model does not hold */
  DHLO_OUT_OF_MEMORY = 3,    /* the allocator failed or the session's cap would be exceeded */
  DHLO_IO = 4,               /* the file cannot be opened or read */
  DHLO_FORMAT = 5,           /* not a model file, cut off, or damaged */
  DHLO_VERSION = 6,          /* made by a newer or older compiler than this runtime reads */
  DHLO_CPU = 7,              /* this processor lacks something that the code needs */
  DHLO_BUSY = 8,             /* the session is in use by another thread */
  DHLO_INTERNAL = 9,         /* compiled code or runtime broke its own rules */
  DHLO_HOST = 10,            /* a hook of the host failed or didn't do what it must */
  DHLO_UNTRUSTED = 11,       /* the host's authorize function refused the file */
  DHLO_CANCELLED = 12,       /* the run was cancelled */
  DHLO_DEADLINE = 13         /* the run took longer than its timeout */
};

/* An entry of immutable code and constants. Reference counted; every function may be called from any number of threads
 * at once. Lives until the last reference is released; sessions hold one. */
typedef struct dhlo_model dhlo_model;

/* What one caller needs to run a model: arena, scratch, mutable state, outputs. Owned by whoever created it. Must not
 * be used by two threads at once: while a call is in progress on it others are refused with DHLO_BUSY, those of hooks
 * that it calls included. dhlo_session_error and dhlo_session_counters are not guarded. */
typedef struct dhlo_session dhlo_session;

/* ---- helpers -------------------------------------------------------------------------------------------------------
 */

/* (major << 16) | (minor << 8) | patch of the library in use. */
DHLO_API uint32_t dhlo_runtime_version(void);
/* The ABI (DHLO_ABI_VERSION) that the library in use hosts: it loads models made for this one only. */
DHLO_API uint32_t dhlo_runtime_abi_version(void);
/* Name of a status, e.g. "contract". Never NULL; static. */
DHLO_API const char* dhlo_status_name(dhlo_status status);
/* Bytes of one element; 0 for an unknown dtype. */
DHLO_API int64_t dhlo_dtype_bytes(int32_t dtype);
/* Name as PyTorch spells it ("float32"); "unknown" for an unknown dtype. Static. */
DHLO_API const char* dhlo_dtype_name(int32_t dtype);
/* 1 if this processor and its operating system support the feature (LLVM's spelling), 0 if not or if the name is
 * unknown. */
DHLO_API int32_t dhlo_cpu_supports(const char* feature);
/* Text of the last failure of a function that takes no session, on the calling thread. Valid until the next such
 * failure. */
DHLO_API const char* dhlo_last_error(void);

/* ---- machine -------------------------------------------------------------------------------------------------------
 */

/* Where the facts of the machine come from that compiled code chooses block sizes, instructions and prefetches by (enum
 * dhlo_machine of abi.h). `text`:
 *   ""                 measured by the first process of a user on a machine, in at most some five milliseconds as the
 *                      first model is loaded, and kept in a file for later ones: in the folder DHLO_CACHE_DIR,
 *                      $XDG_CACHE_HOME/dhlo or ~/.cache/dhlo. Where that can't be written each process measures
 *   "measure"          measured, neither read from a file nor kept
 *   "nominal"          caches as the system tells them, all else fixed values of a usual server
 *   "name=value,..."   nominal but for these, e.g. "bf16_percent=100,wake_ns=500"
 * Without a call DHLO_MACHINE in the environment says it, in the same words; what it says wrong is refused when a model
 * is loaded. DHLO_INVALID_ARGUMENT for other texts and values out of range; DHLO_BUSY once a model has been loaded. */
DHLO_API dhlo_status dhlo_machine_configure(const char* text);
/* A fact, found now if it hasn't been; -1 if there is none of that index. */
DHLO_API int64_t dhlo_machine_fact(int32_t index);
/* Its name; NULL if there is none of that index. Static. */
DHLO_API const char* dhlo_machine_fact_name(int32_t index);

/* ---- hooks ---------------------------------------------------------------------------------------------------------
 */

/* Memory for arenas, scratch, state and runtime-owned outputs (not for constants, which the runtime holds itself). Must
 * be thread-safe. `alloc` returns memory aligned to `alignment` (a power of two) or NULL; memory aligned otherwise is
 * given back, and the call fails with DHLO_HOST. Copied into the model; `ctx` must outlive it. */
typedef struct dhlo_allocator {
  void* ctx;
  void* (*alloc)(void* ctx, size_t bytes, size_t alignment);
  void (*free)(void* ctx, void* data, size_t bytes, size_t alignment);
} dhlo_allocator;

/* The host's own threads. `run` must call fn(arg, task) once for every task in [0, tasks) and return 0 when all have
 * returned, or another number if it can't; tasks may run in any order, at once or one by one. tasks <= num_threads.
 * Must be thread-safe if sessions run on several threads. Copied into the model; `ctx` must outlive it.
 *
 * None of this is taken on trust: work that isn't done when `run` returns fails the call with DHLO_HOST, as do a number
 * other than 0, an exception and tasks out of range; a task's second call does nothing. Where `run` returns early the
 * runtime waits for tasks that have begun, so that no thread writes to memory of a run that is over; tasks that begin
 * later do nothing of that run, as long as the session lives. A thread that is killed inside a task is waited for
 * without end. */
typedef struct dhlo_parallel {
  void* ctx;
  int64_t num_threads;
  int32_t (*run)(void* ctx, int64_t tasks, void (*fn)(void* arg, int64_t task), void* arg);
} dhlo_parallel;

/* One operation that the processes of a group do together: see dhlo_collective_kind in abi.h. Fields are only ever
 * added behind the last; struct_bytes tells which there are. */
typedef struct dhlo_collective {
  uint32_t struct_bytes;
  int32_t kind;      /* dhlo_collective_kind */
  int32_t dtype;     /* dhlo_dtype of input and output */
  int32_t reduction; /* dhlo_reduction, where it reduces; else -1 */
  const char* group; /* as the model names it */
  int64_t group_size;
  int64_t root;        /* of a broadcast: whose input all get, by its number in the group; else -1 */
  const void* input;   /* dense; must stay as it is */
  int64_t input_count; /* elements */
  void* output;        /* dense; shares no byte with the input */
  int64_t output_count;
  const int64_t*
      sends; /* of an all-to-all, group_size numbers: the elements that go to each process, in their order; */
  const int64_t* receives; /* and those that come from each. Else NULL */
  int64_t timeout_ns;      /* until the run's timeout; 0: it has none */
  const void* run;
  int32_t (*stopped)(
      const void* run); /* stopped(run) isn't 0 once the run was told to stop: the hook is to return then */
} dhlo_collective;
/* Returns 0 when the output is complete and nothing reads or writes input and output any more; another number if it
 * failed, or gave up since the run was told to stop: then, too, nobody may touch them afterwards. */
typedef int32_t (*dhlo_collective_fn)(void* ctx, const dhlo_collective* operation);

/* The other processes that run a model with this one, over whatever connects them. Hooks are called on the thread that
 * runs the session. All processes of a group must run the same calls in the same order, one session at a time. After a
 * run that failed they may have got out of step, each waiting for another's next operation: unless all of them know of
 * the failure, connect them anew. A hook that is NULL: models that need it are refused. */
typedef struct dhlo_communicator {
  uint32_t struct_bytes;
  int32_t reserved;
  void* ctx; /* must outlive the sessions */
  /* The number of processes in the group, and this one's number there. Not 0: there is no such group. Called as a
   * session is created, for each group of the model. */
  int32_t (*find_group)(void* ctx, const char* group, int64_t* size, int64_t* rank);
  dhlo_collective_fn all_reduce;
  dhlo_collective_fn all_gather;
  dhlo_collective_fn reduce_scatter;
  dhlo_collective_fn all_to_all;
  dhlo_collective_fn broadcast;
} dhlo_communicator;
DHLO_API void dhlo_communicator_init(dhlo_communicator* communicator);

/* ---- tracing and logs ----------------------------------------------------------------------------------------------
 */

/* What a span of time was spent on. New kinds may be added: skip those that you don't know. */
typedef enum dhlo_trace_kind {
  DHLO_TRACE_RUN = 0, /* one run, from its first check to its end, on its thread; name: the entry's, or the model's */
  DHLO_TRACE_LAUNCH = 1,    /* one launch, on the run's thread, from its call to its return; name: the kernel's */
  DHLO_TRACE_WORK = 2,      /* what one thread did of a launch that several could take part in, the run's own thread
                               included; launches without any ran as a whole on the run's thread */
  DHLO_TRACE_WAIT = 3,      /* the run's thread, out of work, waited for others to finish their parts of the launch */
  DHLO_TRACE_COLLECTIVE = 4 /* an operation with other processes, on the run's thread; name: "all_reduce", ... */
} dhlo_trace_kind;

/* A span that has ended. Spans come in the order of their ends: those of threads before their launch's, launches before
 * their run. Fields are only ever added behind the last; struct_bytes tells which there are. */
typedef struct dhlo_trace_event {
  uint32_t struct_bytes;
  int32_t kind;     /* dhlo_trace_kind */
  const char* name; /* of the entry or kernel; lives as long as the model */
  int64_t begin_ns; /* of CLOCK_MONOTONIC */
  int64_t end_ns;
  const dhlo_session* session;
  int64_t run;        /* the number of the run among those of the session and of others that share its state, from 1 */
  int64_t launch;     /* index of the launch site (dhlo_model_launch); -1 of a run */
  int64_t items;      /* of the launch's iteration space: of a launch all, of work those that the thread did; of a
                         collective operation the elements of its output; else 0 */
  int32_t worker;     /* number of the thread in the launch, 0 is the run's own; of work, else 0 */
  int32_t thread;     /* the operating system's id of the thread */
  dhlo_status status; /* of a run or launch; else DHLO_OK */
} dhlo_trace_event;
/* Called on the thread whose span it is, several at once, as soon as the span has ended; the event is valid during the
 * call. What it takes is part of the spans around it. Must not call functions of the session. */
typedef void (*dhlo_trace_fn)(void* ctx, const dhlo_trace_event* event);

typedef enum dhlo_log_level {
  DHLO_LOG_ERROR = 0,   /* the runtime can't do what it should: a hook of the host threw, threads can't be started */
  DHLO_LOG_WARNING = 1, /* a run failed: its text */
  DHLO_LOG_INFO = 2,    /* models are loaded and released */
  DHLO_LOG_DEBUG = 3    /* sessions' memory grows */
} dhlo_log_level;
/* `text` is one line without its end, valid during the call. Called on any thread, several at once. Must not call
 * functions of the session or model that it is about. */
typedef void (*dhlo_log_fn)(void* ctx, int32_t level, const char* text);

/* ---- environment ---------------------------------------------------------------------------------------------------
 */

/* What models and their sessions share in a process: one pool of threads, a limit on memory, and the host's hooks for
 * these. Models without one share a pool with all those of as many threads. Reference counted, and thread-safe; models
 * hold a reference. */
typedef struct dhlo_env dhlo_env;

/* Starts a thread that calls main(arg) once and ends, and returns what it is to be joined by, or NULL if there is none.
 * `name`: "dhlo-worker" of the pool, "dhlo-runner" for dhlo_session_run_async. Here the host chooses stack, priority,
 * processors and signals; threads of the runtime's own have all signals blocked but those of faults. */
typedef void* (*dhlo_create_thread_fn)(void* ctx, const char* name, void (*main)(void* arg), void* arg);
/* Waits for the thread's end. Called for each as the environment ends, but not for the one that it ends on, if a
 * dhlo_done_fn gives up the last reference. */
typedef void (*dhlo_join_thread_fn)(void* ctx, void* thread);

typedef struct dhlo_env_options {
  uint32_t struct_bytes;
  int32_t log_level;   /* tell `log` of this level and those below; default DHLO_LOG_WARNING */
  int64_t num_threads; /* as dhlo_model_options.num_threads; 0: as many as there are `processors`, if they are given */
  int64_t max_bytes;   /* 0: none. Limit on all that sessions hold (arena, scratch, state, outputs of theirs) and on
                          constants that were loaded; what would exceed it fails with DHLO_OUT_OF_MEMORY */
  dhlo_allocator allocator;  /* alloc == NULL: the runtime's own */
  const int32_t* processors; /* those that threads of the runtime's may run on, by number; NULL: where the thread that
                                starts them may run. The host's own threads are never moved */
  int64_t num_processors;
  dhlo_create_thread_fn create_thread; /* NULL: the runtime's own; excludes processors */
  dhlo_join_thread_fn join_thread;
  void* threads_ctx;
  dhlo_trace_fn trace; /* of all sessions that have none of their own; NULL: none */
  void* trace_ctx;
  dhlo_log_fn log; /* NULL: nothing is logged */
  void* log_ctx;
} dhlo_env_options;

DHLO_API void dhlo_env_options_init(dhlo_env_options* options);
/* `options` may be NULL. Starts no thread yet. Threads of the pool help all launches in progress, a chunk of each in
 * turn, up to eight at once; each session's thread works on its own. Contexts of hooks must outlive the environment. */
DHLO_API dhlo_status dhlo_env_create(const dhlo_env_options* options, dhlo_env** out);
DHLO_API void dhlo_env_retain(dhlo_env* env);
/* NULL is allowed. */
DHLO_API void dhlo_env_release(dhlo_env* env);
DHLO_API int64_t dhlo_env_num_threads(const dhlo_env* env);
/* What counts against max_bytes, now. */
DHLO_API int64_t dhlo_env_used_bytes(const dhlo_env* env);

/* ---- model ---------------------------------------------------------------------------------------------------------
 */

/* Decides whether a model file may be loaded, e.g. by a signature, with a library of the host's choice. `digest` is the
 * SHA-256 that stands for the whole file (see abi.h): what is loaded afterwards is what it says, or the load fails.
 * Called once a load, on its thread, when the table of sections is verified and before any code is mapped. 0 accepts.
 */
typedef int32_t (*dhlo_authorize_fn)(void* ctx, const uint8_t* digest, size_t bytes);

/* Whether the constants of a file are read and hashed when it is loaded; all else always is. */
typedef enum dhlo_verify {
  DHLO_VERIFY_NEVER = 0,
  DHLO_VERIFY_ONCE = 1, /* unless an earlier load found the same file whole and nobody has changed it since, by device,
                           inode, size and times of change; remembered in the folder of dhlo_machine_configure */
  DHLO_VERIFY_ALWAYS = 2
} dhlo_verify;

/* Where the constants of a model file are. Pages of the file are shared by all processes that map it, and the system
 * may drop them and read them again: leave the file as it is as long as the model lives (replacing it by another of the
 * same name is fine), since writing to it changes results, and a page that can't be read any more ends the process. */
typedef enum dhlo_constants_memory {
  DHLO_CONSTANTS_AUTO = 0,      /* MAPPED; COPIED where there is `authorize`, or what isn't a file that can be mapped */
  DHLO_CONSTANTS_MAPPED = 1,    /* pages of the file, each read when it is first needed */
  DHLO_CONSTANTS_POPULATED = 2, /* the same, all read during loading */
  DHLO_CONSTANTS_LOCKED = 3,    /* the same, and kept in memory; DHLO_OUT_OF_MEMORY above the limit RLIMIT_MEMLOCK */
  DHLO_CONSTANTS_COPIED = 4     /* memory of the process's own, in huge pages where there are any */
} dhlo_constants_memory;

typedef struct dhlo_model_options {
  uint32_t struct_bytes;
  int32_t verify_constants;    /* a dhlo_verify; DHLO_VERIFY_ALWAYS where there is `authorize`. Default
                                  DHLO_VERIFY_ONCE. */
  int64_t num_threads;         /* 0: one per processor that the process may use, by its affinity and the quota of its
                                  control group. DHLO_NUM_THREADS in the environment wins. Models with equal counts
                                  share one pool of threads. */
  dhlo_allocator allocator;    /* alloc == NULL: the runtime's own */
  dhlo_parallel parallel;      /* run == NULL: the runtime's own pool; otherwise num_threads above is ignored */
  dhlo_authorize_fn authorize; /* NULL: every file may be loaded */
  void* authorize_ctx;
  dhlo_env* env; /* NULL: none. Otherwise its threads, limit, and, if there is none above, allocator; num_threads above
                    is ignored. With `parallel` the environment's threads only serve dhlo_session_run_async */
  int32_t constants_memory; /* a dhlo_constants_memory; of files only */
  int32_t reserved;
  /* Of model files, where their constants are instead: a weights file (`dhlo compile --weights-file`, `dhlo
   * update-weights --weights-only`), by its path or whole in memory, which isn't needed after the call. It has the
   * constants that the model was written with, or others that were made for its code; these not where there is
   * `authorize`. Both NULL: the model file's own, or of the weights file that it names, in its folder. */
  const char* weights_path;
  const void* weights_data;
  size_t weights_bytes;
} dhlo_model_options;

DHLO_API void dhlo_model_options_init(dhlo_model_options* options);

/* `options` may be NULL. The result has one reference. The file's name is not needed after the call. All of it is
 * verified against its digests (of constants see dhlo_verify), and the processor's features are tested, before any code
 * is mapped; but code is code: load files of those you trust, or let `authorize` decide. Starts no more threads than
 * the model has. */
DHLO_API dhlo_status dhlo_model_load_file(const char* path, const dhlo_model_options* options, dhlo_model** out);
/* The same from a whole model file in memory; `data` is not needed after the call. Where its constants are in a weights
 * file, the options must say where that is. */
DHLO_API dhlo_status dhlo_model_load_memory(const void* data, size_t bytes, const dhlo_model_options* options,
                                            dhlo_model** out);
/* From code that is already in the process (JIT, static linking); there is no file to verify or authorize. `constants`
 * holds descriptor->constants_bytes bytes, is 64-byte aligned and borrowed, like the descriptor, until `release(ctx)`
 * is called with the last reference (release may be NULL; it is not called if this function fails). */
DHLO_API dhlo_status dhlo_model_from_descriptor(const dhlo_abi_model* descriptor, const void* constants,
                                                size_t constants_bytes, void (*release)(void* ctx), void* ctx,
                                                const dhlo_model_options* options, dhlo_model** out);
/* Another entry of the same model, by name, with one reference: a dhlo_model whose inputs, outputs, launches and
 * metadata are the entry's, and which shares all else: code, constants, threads, states. A model that was loaded is its
 * first entry. DHLO_INVALID_ARGUMENT, naming those that there are, for an unknown name. */
DHLO_API dhlo_status dhlo_model_entry(const dhlo_model* model, const char* name, dhlo_model** out);
/* At least 1; the name of a model's only entry may be "". */
DHLO_API int64_t dhlo_model_num_entries(const dhlo_model* model);
DHLO_API const char* dhlo_model_entry_name(const dhlo_model* model, int64_t index);
DHLO_API void dhlo_model_retain(dhlo_model* model);
/* NULL is allowed. */
DHLO_API void dhlo_model_release(dhlo_model* model);

/* All strings and arrays belong to the model and live as long as it does. Getters with an index return NULL out of
 * range. */
DHLO_API const char* dhlo_model_name(const dhlo_model* model);
DHLO_API const char* dhlo_model_producer(const dhlo_model* model);
DHLO_API const char* dhlo_model_metadata(const dhlo_model* model); /* of the entry, JSON */
/* Of a model's levels (its code for several kinds of machine) the last that this machine can run is taken, or the one
 * that DHLO_TARGET names: which, and the processor features that it needs. */
DHLO_API const char* dhlo_model_level(const dhlo_model* model);
DHLO_API const char* dhlo_model_cpu_features(const dhlo_model* model);
DHLO_API int64_t dhlo_model_num_threads(const dhlo_model* model);
DHLO_API int64_t dhlo_model_constants_bytes(const dhlo_model* model);
DHLO_API int64_t dhlo_model_state_bytes(const dhlo_model* model);
DHLO_API int64_t dhlo_model_num_inputs(const dhlo_model* model);
DHLO_API const dhlo_abi_value* dhlo_model_input(const dhlo_model* model, int64_t index);
/* 1 if a run writes new content to the input's memory (through its strides), 0 if it only reads it. What a run writes
 * whole is written last, so that a failed run leaves it alone; where a run writes only some rows or elements (a cache
 * that is updated at a position), a run that fails after the checks of its arguments may have written them. */
DHLO_API int32_t dhlo_model_input_is_updated(const dhlo_model* model, int64_t index);
/* What a program takes whose caches are pools of blocks; NULL: it has none. */
DHLO_API const dhlo_abi_paging* dhlo_model_paging(const dhlo_model* model);
/* Groups of processes that a run has operations with, and these, in the order in which they stand in the program. */
DHLO_API int64_t dhlo_model_num_process_groups(const dhlo_model* model);
DHLO_API const dhlo_abi_process_group* dhlo_model_process_group(const dhlo_model* model, int64_t index);
DHLO_API int64_t dhlo_model_num_collectives(const dhlo_model* model);
DHLO_API const dhlo_abi_collective* dhlo_model_collective(const dhlo_model* model, int64_t index);
DHLO_API int64_t dhlo_model_num_outputs(const dhlo_model* model);
DHLO_API const dhlo_abi_value* dhlo_model_output(const dhlo_model* model, int64_t index);
DHLO_API int64_t dhlo_model_num_states(const dhlo_model* model);
DHLO_API const dhlo_abi_state* dhlo_model_state(const dhlo_model* model, int64_t index);
/* Sizes that differ from call to call, by the names that dims of inputs and outputs are written with, and their ranges.
 */
DHLO_API int64_t dhlo_model_num_symbols(const dhlo_model* model);
DHLO_API const dhlo_abi_symbol* dhlo_model_symbol(const dhlo_model* model, int64_t index);
/* What each run checks, in no particular order. Texts are what a failure's text begins with. */
DHLO_API int64_t dhlo_model_num_checks(const dhlo_model* model);
DHLO_API const dhlo_abi_check* dhlo_model_check(const dhlo_model* model, int64_t index);
/* The kinds of machine that the model has code for, and the index of the one that dhlo_model_level names. */
DHLO_API int64_t dhlo_model_num_levels(const dhlo_model* model);
DHLO_API const dhlo_abi_level* dhlo_model_level_at(const dhlo_model* model, int64_t index);
DHLO_API int64_t dhlo_model_level_index(const dhlo_model* model);
DHLO_API int64_t dhlo_model_num_launches(const dhlo_model* model);
/* Kernel name of a launch site. */
DHLO_API const char* dhlo_model_launch(const dhlo_model* model, int64_t index);

/* What a run with these inputs takes: to the byte arena_used, scratch_used, output_used and launches of dhlo_counters
 * after it, where no output is bound and unless data_dependent. */
typedef struct dhlo_plan {
  uint32_t struct_bytes;
  int32_t data_dependent; /* 1 if what a run takes depends on data too: of branches both are counted, of loops one turn,
                             and nothing after the first size that only data tells */
  int64_t arena_bytes;    /* intermediate values, copies of inputs that aren't dense */
  int64_t scratch_bytes;  /* all threads together */
  int64_t output_bytes;   /* all outputs */
  int64_t state_bytes;    /* mutable state of a session */
  int64_t constants_bytes; /* of the model, which sessions share; not in total_bytes */
  int64_t total_bytes;     /* of a session: arena, scratch, outputs and state */
  int64_t peak_live_bytes; /* lower bound of arena_bytes: the most bytes of values that are live at once */
  int64_t num_launches;
} dhlo_plan;
/* rank is -1 where the sizes depend on data. */
typedef struct dhlo_shape {
  int32_t dtype;
  int32_t rank;
  int64_t sizes[DHLO_ABI_MAX_RANK];
} dhlo_shape;
/* Checks the contract and counts without running. Data of inputs may be NULL: of a number (rank 0) that means that
 * what depends on it isn't known. `outputs` has room for num_outputs entries, or is NULL. */
DHLO_API dhlo_status dhlo_model_plan(const dhlo_model* model, const dhlo_tensor* inputs, int64_t num_inputs,
                                     dhlo_shape* outputs, dhlo_plan* plan);

/* ---- session -------------------------------------------------------------------------------------------------------
 */

/* Returns memory for output `index` (dense row-major; 64-byte alignment preferred; used by nothing else during the
 * run), or NULL on failure. Called on the thread that runs the session, once an output. `sizes` is valid during the
 * call. Memory that an input or another output of the run has fails it with DHLO_HOST. */
typedef void* (*dhlo_output_fn)(void* ctx, int64_t index, int32_t dtype, int64_t rank, const int64_t* sizes);

typedef struct dhlo_session_options {
  uint32_t struct_bytes;
  int32_t profile;       /* nonzero: start with profiling on */
  int64_t max_bytes;     /* cap on arena + scratch + state + the model's constants + outputs that aren't bound (in the
                            run that makes them, where the hook gives their memory); 0: none */
  dhlo_output_fn output; /* NULL: the runtime owns outputs that are not bound */
  void* output_ctx;
  const dhlo_communicator* communicator; /* copied; NULL: none, and models with collective operations are refused */
} dhlo_session_options;

DHLO_API void dhlo_session_options_init(dhlo_session_options* options);
/* `options` may be NULL. Retains the model. Failures are in dhlo_last_error(). */
DHLO_API dhlo_status dhlo_session_create(dhlo_model* model, const dhlo_session_options* options, dhlo_session** out);
/* A session of an entry of the same model that shares state and random generator with `session`, and the memory that is
 * in use during a run only: what either's runs change the other sees. Outputs, their bindings and the error text are
 * its own; a cap counts what is shared and its own outputs. One call at a time of all sessions that share: others are
 * refused with DHLO_BUSY. They may be destroyed in any order. `options` may be NULL. Failures are in dhlo_last_error().
 */
DHLO_API dhlo_status dhlo_session_create_sharing(dhlo_session* session, dhlo_model* entry,
                                                 const dhlo_session_options* options, dhlo_session** out);
/* NULL is allowed. Must not be called during a run, but for asynchronous ones: these are cancelled and waited for,
 * `done` included unless it is what calls; what `done` asks for meanwhile, dhlo_session_run_async refuses with
 * DHLO_CANCELLED. */
DHLO_API void dhlo_session_destroy(dhlo_session* session);
/* Borrowed. */
DHLO_API dhlo_model* dhlo_session_model(const dhlo_session* session);
/* Text of the last failure of this session, "" if none. Valid until the next call on the session. A refusal with
 * DHLO_BUSY leaves it alone, since it belongs to the thread that holds the session, and is in dhlo_last_error(). */
DHLO_API const char* dhlo_session_error(const dhlo_session* session);

/* Runs the model. Inputs are borrowed for the call. In steady state (no shape needs more memory than an earlier one)
 * this allocates nothing; where memory or room under the cap is missing the session holds nothing but its state
 * afterwards, so that the next run has all the room there is. Memory that the run writes, of inputs that are updated
 * and of outputs (bound, or the session's own: what an earlier run gave out is no input of the next, copy it or bind
 * memory in turns), must be used by no other input or bound output, and by no two elements: refused with
 * DHLO_INVALID_ARGUMENT before anything runs. Tensors may interleave (slices of one buffer) as long as they share no
 * byte. */
DHLO_API dhlo_status dhlo_session_run(dhlo_session* session, const dhlo_tensor* inputs, int64_t num_inputs);

typedef struct dhlo_run_options {
  uint32_t struct_bytes;
  int32_t reserved;
  int64_t timeout_ns;             /* 0: none. Otherwise the run fails with DHLO_DEADLINE once it has taken so long */
  const volatile int32_t* cancel; /* NULL: none. Otherwise the run fails with DHLO_CANCELLED once this isn't 0, as an
                                     atomic store of any thread makes it; not written to. Runs may share one */
} dhlo_run_options;
DHLO_API void dhlo_run_options_init(dhlo_run_options* options);
/* The same with options, which may be NULL.
 *
 * A run is stopped between two launches, at a turn of a loop, and within a launch between two of its chunks, of which a
 * thread gets 64 in a run with a timeout or a `cancel`, 4 in others: so after a 64th of the longest kernel at the
 * latest. What a run was stopped in, it leaves like any run that fails: see dhlo_session_reset_state for the state and
 * dhlo_model_input_is_updated for inputs. Once it replaces the content of states and inputs, at its end, it isn't
 * stopped any more. */
DHLO_API dhlo_status dhlo_session_run_with(dhlo_session* session, const dhlo_tensor* inputs, int64_t num_inputs,
                                           const dhlo_run_options* options);
/* Stops the run in progress, if there is one, from any thread: it fails with DHLO_CANCELLED. Does nothing to later
 * runs: to stop a run that may not have begun yet, give it dhlo_run_options.cancel. Never waits. */
DHLO_API dhlo_status dhlo_session_cancel(dhlo_session* session);

/* Called once, when an asynchronous run has ended, on the thread that ran it. The session is free again: the function
 * may read outputs, run it again, or destroy it. */
typedef void (*dhlo_done_fn)(void* ctx, dhlo_session* session, dhlo_status status);
/* The same on a thread of the environment's (or of the process's, without one), as many at once as it has threads, in
 * the order of the calls. DHLO_OK: the run is accepted, and `done` will be called. From then on dhlo_session_cancel and
 * the timeout stop it, and other calls are refused with DHLO_BUSY until right before `done`. Sizes, strides and
 * `options` are copied; data and `cancel` must stay until `done`. Any other status, with a text in dhlo_last_error():
 * `done` won't be called. */
DHLO_API dhlo_status dhlo_session_run_async(dhlo_session* session, const dhlo_tensor* inputs, int64_t num_inputs,
                                            const dhlo_run_options* options, dhlo_done_fn done, void* ctx);

/* Binds caller-owned memory to an output for all later runs; `data` NULL unbinds. All of its `capacity` bytes are the
 * output's during a run. A run whose output does not fit fails with DHLO_INVALID_ARGUMENT and says how much is needed.
 */
DHLO_API dhlo_status dhlo_session_bind_output(dhlo_session* session, int64_t index, void* data, int64_t capacity);
/* Output of the last successful run, wherever its memory came from. Sizes and runtime-owned data are valid until the
 * next run or the session's end. */
DHLO_API dhlo_status dhlo_session_output(dhlo_session* session, int64_t index, dhlo_tensor* out);

/* Mutable state by name. Sizes must match exactly. Reset puts every state back to its initial value. After a failed run
 * state is what it was before, but for the elements of states of which a run writes only parts: see
 * dhlo_model_input_is_updated. */
DHLO_API dhlo_status dhlo_session_read_state(dhlo_session* session, const char* name, void* data, int64_t bytes);
DHLO_API dhlo_status dhlo_session_write_state(dhlo_session* session, const char* name, const void* data, int64_t bytes);
DHLO_API dhlo_status dhlo_session_reset_state(dhlo_session* session);
/* The memory of a state, dense, for reading and writing without a copy: `out` is valid as long as the session or one
 * that shares its state lives, always at the same address. What a run reads and writes there must be left alone until
 * it has returned, and must not be an input or a bound output of a run that writes to it. DHLO_BUSY during a run. */
DHLO_API dhlo_status dhlo_session_state(dhlo_session* session, const char* name, dhlo_tensor* out);

/* A new session of the same model with the same state and random generator. It has options of its own; NULL: those of
 * `session`. Outputs and their bindings are not copied. Failures are in dhlo_last_error(). */
DHLO_API dhlo_status dhlo_session_copy(const dhlo_session* session, const dhlo_session_options* options,
                                       dhlo_session** out);
/* State and random generator as bytes, to be restored in any session whose model has states of the same names,
 * sizes and dtypes, in this process or another: `bytes` is dhlo_session_snapshot_bytes(), the same for all sessions of
 * a model. Restoring checks all of it before it changes anything: DHLO_FORMAT for what is no whole snapshot,
 * DHLO_INVALID_ARGUMENT for one of other states. */
DHLO_API int64_t dhlo_session_snapshot_bytes(const dhlo_session* session);
DHLO_API dhlo_status dhlo_session_snapshot(const dhlo_session* session, void* data, int64_t bytes);
DHLO_API dhlo_status dhlo_session_restore(dhlo_session* session, const void* data, int64_t bytes);

/* Random numbers of all later runs follow from the seed, whatever the number of threads. A new session is seeded by the
 * operating system. */
DHLO_API dhlo_status dhlo_session_seed(dhlo_session* session, uint64_t seed);

/* Frees arena, scratch and runtime-owned outputs (state stays); the next run allocates again. */
DHLO_API dhlo_status dhlo_session_trim(dhlo_session* session);

typedef struct dhlo_counters {
  uint32_t struct_bytes;
  int32_t reserved;
  int64_t runs; /* successful runs */
  int64_t failed_runs;
  int64_t launches;      /* kernel launches in all runs */
  int64_t arena_bytes;   /* arena memory held */
  int64_t arena_used;    /* arena memory that the last run asked for */
  int64_t scratch_bytes; /* held, all workers */
  int64_t output_bytes;  /* held for runtime-owned outputs */
  int64_t growths;       /* times that any of these had to grow */
  int64_t state_bytes;   /* of mutable state */
  int64_t scratch_used;  /* scratch that the last run asked for, all workers */
  int64_t output_used;   /* bytes of the last run's outputs that aren't bound */
} dhlo_counters;
DHLO_API dhlo_status dhlo_session_counters(const dhlo_session* session, dhlo_counters* out);

/* Per launch site: how often it ran and the nanoseconds spent, since profiling was switched on or last reset. */
typedef struct dhlo_launch_profile {
  uint32_t struct_bytes;
  int32_t reserved;
  int64_t count;
  int64_t nanoseconds;
} dhlo_launch_profile;
/* mode 0: off (costs nothing), 1: on, 2: on with figures set to zero. */
DHLO_API dhlo_status dhlo_session_set_profile(dhlo_session* session, int32_t mode);
DHLO_API dhlo_status dhlo_session_profile(const dhlo_session* session, int64_t launch, dhlo_launch_profile* out);
/* Traces all later runs of the session, instead of the environment's function; NULL ends both. Costs nothing while off.
 */
DHLO_API dhlo_status dhlo_session_set_trace(dhlo_session* session, dhlo_trace_fn trace, void* ctx);

#ifdef __cplusplus
static_assert(sizeof(dhlo_plan) == 72, "dhlo_plan");
static_assert(sizeof(dhlo_launch_profile) == 24, "dhlo_launch_profile");
static_assert(sizeof(dhlo_run_options) == 24, "dhlo_run_options");
static_assert(sizeof(dhlo_trace_event) == 80, "dhlo_trace_event");
static_assert(sizeof(dhlo_shape) == 72, "dhlo_shape");
static_assert(sizeof(dhlo_model_options) == 120, "dhlo_model_options");
static_assert(sizeof(dhlo_env_options) == 120, "dhlo_env_options");
static_assert(sizeof(dhlo_session_options) == 40, "dhlo_session_options");
static_assert(sizeof(dhlo_collective) == 112, "dhlo_collective");
static_assert(sizeof(dhlo_communicator) == 64, "dhlo_communicator");
static_assert(sizeof(dhlo_counters) == 96, "dhlo_counters");
}
#endif
#endif
