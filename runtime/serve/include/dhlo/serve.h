/* Serving a language model from C: an engine that takes requests at any time, and runs a compiled step, whose caches
 * are pools of blocks (`dhlo.compile(..., pages=...)`), over parts of many of them at once (continuous batching).
 *
 * Conventions are those of dhlo/runtime.h: statuses, structs that start with `struct_bytes` and are filled by their
 * *_init function first, nothing throws, aborts or prints, and `out` arguments are written on success only. After a
 * failure its text is in dhlo_serve_last_error().
 *
 * Threads: all functions may be called from any number of threads at once, but where one says otherwise. Steps run on a
 * thread of the engine's, or on the host's in dhlo_engine_step. In the child of a fork() an engine of the parent's is
 * of no use: close and destroy do nothing, the others fail.
 */
#ifndef DHLO_SERVE_H
#define DHLO_SERVE_H

#include "dhlo/runtime.h"
#include "dhlo/store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes requests and answers them by events. Owned by whoever created it. */
typedef struct dhlo_engine dhlo_engine;

/* Text of the last failure of a function of this header on the calling thread; valid until the next one. Never NULL. */
DHLO_API const char* dhlo_serve_last_error(void);

/* ---- events --------------------------------------------------------------------------------------------------------
 */

/* Why a choice ended. */
typedef enum dhlo_finish {
  DHLO_FINISH_NONE = 0,      /* it goes on */
  DHLO_FINISH_STOP = 1,      /* by a stop token, which is given, or a stop string */
  DHLO_FINISH_LENGTH = 2,    /* max_tokens, or the largest number of positions */
  DHLO_FINISH_CANCELLED = 3, /* by dhlo_engine_cancel, or as the engine was closed */
  DHLO_FINISH_DEADLINE = 4,
  DHLO_FINISH_ERROR = 5 /* dhlo_event.error says what */
} dhlo_finish;

/* New tokens of a choice, its end, or both. Fields are only ever added behind the last; struct_bytes tells which there
 * are. */
typedef struct dhlo_event {
  uint32_t struct_bytes;
  int32_t choice; /* 0 to n - 1 */
  uint64_t request;
  void* user;     /* dhlo_sampling.user */
  int32_t finish; /* a dhlo_finish; not NONE: the choice's last event */
  int32_t last;   /* 1: the request's last event */
  int64_t num_tokens;
  const int32_t* tokens;
  int64_t num_top;           /* of each token; at most dhlo_sampling.logprobs, and the vocabulary's size */
  const float* logprobs;     /* [num_tokens], natural logarithms; NULL if they weren't asked for */
  const int32_t* top_tokens; /* [num_tokens, num_top], the most likely first; NULL if num_top is 0 */
  const float* top_logprobs; /* the same */
  int32_t stop; /* of a choice that a stop string ended: its index. All tokens up to the one that completes it are
                   given, and none but those of this event has a byte of it; else -1 */
  int32_t reserved;
  const char* error; /* "" unless finish is DHLO_FINISH_ERROR */
  int64_t prompt_tokens;
  int64_t cached_tokens; /* of the prompt, whose keys and values were known; 0 until the request has begun */
  double score; /* of a choice that beam search has found, with its tokens: the sum of their log-probabilities over the
                   dhlo_sampling.length_penalty-th power of their number; else 0 */
} dhlo_event;

/* Called with the events of a step, once they are there: on the engine's thread, or in dhlo_engine_step. The events are
 * valid during the call, which holds up the next step. May call all functions of the engine but dhlo_engine_poll,
 * _step, _drain and _close, which fail, and _destroy. What it throws is dropped. */
typedef void (*dhlo_event_fn)(void* ctx, const dhlo_event* const* events, int64_t count);

/* Says which tokens may come next in a choice of a request with dhlo_sampling.constrained (a grammar): clears bits of
 * `allowed` [num_words], of which bit token % 32 of word token / 32 is the token's; all are set. `tokens` are the
 * choice's so far, without the prompt. Returns 0; another number, an exception, or no token that is allowed ends the
 * choice with DHLO_FINISH_ERROR. Called on the thread that runs the step; choices of a request in turn, and tokens of a
 * choice in order, each number of them once. Must not call functions of the engine but dhlo_engine_submit and
 * dhlo_engine_cancel. */
typedef int32_t (*dhlo_constrain_fn)(void* ctx, uint64_t request, void* user, int32_t choice, const int32_t* tokens,
                                     int64_t num_tokens, uint32_t* allowed, int64_t num_words);

/* ---- engine --------------------------------------------------------------------------------------------------------
 */

/* What becomes of what a choice has computed, when it gives up its blocks for others. */
typedef enum dhlo_preemption {
  DHLO_PREEMPTION_RECOMPUTE = 0, /* it is computed again, but for blocks that the cache still has */
  DHLO_PREEMPTION_SWAP = 1 /* it is copied out of the pools, and back; computed again where swap_bytes don't suffice */
} dhlo_preemption;

/* Which blocks a sequence goes on without, of those that may go. */
typedef enum dhlo_eviction {
  DHLO_EVICTION_RECENT = 0, /* the oldest */
  DHLO_EVICTION_NORMS = 1 /* those with the least mean of |V| / |K| over tokens, heads and layers (PagedEviction, arXiv
                             2509.04377) */
} dhlo_eviction;

typedef struct dhlo_engine_options {
  uint32_t struct_bytes;
  int32_t own_thread;      /* default 1: steps run on a thread of the engine's. 0: in dhlo_engine_step */
  int64_t cache_bytes;     /* memory of the pools; 0: a quarter of what the machine, or the control group, has free */
  int64_t max_step_tokens; /* of a step; longer prompts go in parts; default 256 */
  int64_t max_sequences;   /* choices in work at once, at most max_step_tokens; 0: as many, up to 128, and with
                              an encoder up to those whose sources fit into a quarter of what is free. More than fit
                              into all of it are refused */
  int64_t max_waiting;     /* requests that wait for their beginning; default 1024 */
  int64_t max_positions;   /* tokens of prompt and choice together; 0: as many as fit into the pools, and as the model's
                              tables of positions have */
  const int32_t* eos_tokens; /* end choices unless they ignore them */
  int64_t num_eos_tokens;
  /* The bytes of each token, one behind the other, for stop strings: token i has those from vocabulary_offsets[i] to
   * vocabulary_offsets[i + 1]. NULL: stop strings are refused. */
  const char* vocabulary;
  const int64_t* vocabulary_offsets;
  int64_t num_vocabulary;
  int32_t prefix_cache; /* default 1: blocks of ended sequences are kept for others that begin alike */
  int32_t reserved;
  int64_t prompt_lookup; /* drafts of so many tokens at most, by what the sequence said before; 0, the default: none */
  const char* cache_folder;   /* blocks that memory has no room for go there, and those that it keeps when the engine is
                                 closed; they come back in other processes, too. NULL: none */
  int64_t cache_folder_bytes; /* of all files there at most */
  const uint8_t* model_digest; /* 32 bytes that stand for the code and weights of the model and of its encoder: blocks
                                  in a folder or a store are of these alone. May be NULL without these */
  dhlo_constrain_fn constrain; /* NULL: constrained requests are refused */
  void* constrain_ctx;
  dhlo_event_fn on_event; /* NULL: events are fetched by dhlo_engine_poll */
  void* event_ctx;
  dhlo_model* draft_model;   /* another step, of the same vocabulary and tokens of a block, which drafts what the model
                                may say, with a cache of its own; NULL: none. Retained */
  int64_t draft_tokens;      /* of a draft of it at most; default 8 */
  int64_t draft_cache_bytes; /* memory of its pools; 0: as many blocks as the model's */
  int64_t draft_max_positions; /* as max_positions, of the draft model: what comes behind isn't drafted; 0: no limit */
  const dhlo_store* cache_store; /* the same as cache_folder, in objects of the host's; behind the folder if there is
                                    one. Needs model_digest. Its functions are called until dhlo_engine_close has come
                                    back, and may call none of the engine's. NULL: none */
  int32_t preemption;            /* a dhlo_preemption; default DHLO_PREEMPTION_RECOMPUTE */
  int32_t draft_branches; /* so many of its drafts at most follow the same token, where the most likely ones are taken
                             and both models let tokens be a tree (dhlo_abi_paging.hidden); 1: each follows another;
                             default 4 */
  int64_t swap_bytes;     /* memory of what is swapped out at most; 0: as much as the pools */
  const dhlo_communicator* communicator; /* the other processes that run a step with collective operations together with
                                            this one, number 0 of its only process group: they call dhlo_engine_follow.
                                            Copied; its ctx must outlive the engine. Hooks are called on the thread that
                                            runs steps, also where there are none, at least each quarter of
                                            peer_timeout_ns: an engine without a thread of its own needs
                                            dhlo_engine_step as often. NULL: none, and such steps are refused */
  int64_t peer_timeout_ns;               /* so long an operation with them takes at most; 0: a minute */
  int64_t evict_to; /* tokens of a sequence whose keys and values are kept at most, a multiple of a block's: a sequence
                       that comes to so many goes on without a block, within a prompt without an eighth of them, and
                       what it says is no longer the model's own. Refused for models in which what tokens see follows
                       from positions (windows, ALiBi), and for those with states. 0, the default: all are kept */
  int64_t evict_sinks;  /* blocks at a sequence's beginning that stay; default 1 */
  int64_t evict_recent; /* at its end; default 1 */
  int32_t evict_by;     /* a dhlo_eviction; default DHLO_EVICTION_RECENT */
  int32_t reserved3;
  dhlo_model* encoder; /* of a step with cross attention, which needs one: computes of a request's inputs the keys and
                          values that this reads, [1, heads, positions, depth], in the order of the step's inputs for
                          them. Run once for a request, and again where that has given up all blocks. What it gives has
                          memory of its own, of max_sequences requests at most. NULL: none. Retained */
  int64_t max_source_positions; /* of them, where the encoder gives any number; else 0, the default */
} dhlo_engine_options;

DHLO_API void dhlo_engine_options_init(dhlo_engine_options* options);
/* `options` may be NULL; what they point to isn't needed after the call, but for contexts. Retains the model.
 * DHLO_INVALID_ARGUMENT for a model that is no step over pools of blocks, and for options out of range. */
DHLO_API dhlo_status dhlo_engine_create(dhlo_model* model, const dhlo_engine_options* options, dhlo_engine** out);
/* DHLO_OK as long as the engine can run requests; else dhlo_serve_last_error says what is wrong. DHLO_HOST: another
 * process that runs its steps is gone, silent or failed, which is found by the next step, or within 5 seconds without
 * one; all requests end with DHLO_FINISH_ERROR until another engine is made. DHLO_CANCELLED: it is closed. */
DHLO_API dhlo_status dhlo_engine_check_health(const dhlo_engine* engine);
/* Ends all requests with DHLO_FINISH_CANCELLED, interrupting the step in work (with a communicator it is waited for),
 * and the engine's thread. With a folder
 * or a store, writes there what is kept, for 5 seconds at most. What happened can still be polled. Later requests are
 * refused with DHLO_BUSY. DHLO_INVALID_ARGUMENT if a hook calls it. */
DHLO_API dhlo_status dhlo_engine_close(dhlo_engine* engine);
/* In each other process that runs a step together with an engine's, with its own part of the model: does what the
 * engine tells, until that is closed. Takes no requests and gives no events. Of the options only `communicator` and
 * `peer_timeout_ns` are read. DHLO_HOST when the communicator fails, as when process 0 is gone, or silent for longer
 * than the timeout; then nothing of the group goes on: the processes are to be connected anew. */
DHLO_API dhlo_status dhlo_engine_follow(dhlo_model* model, const dhlo_engine_options* options);
/* Closes it and frees it. NULL is allowed. No other call may be in progress, or come later. Does nothing if a hook
 * calls it. */
DHLO_API void dhlo_engine_destroy(dhlo_engine* engine);

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

/* When a beam search that has found beam_width texts is over. */
typedef enum dhlo_early_stopping {
  DHLO_EARLY_STOPPING_SCORES = 0, /* if no beam's score is better now than that of the worst of them */
  DHLO_EARLY_STOPPING_FULL = 1,   /* at once */
  DHLO_EARLY_STOPPING_NEVER = 2   /* if no beam's score can become better, be it as long as it may */
} dhlo_early_stopping;

/* How the tokens of a request are chosen. Logits go through, in this order: penalties and bias, the constraint,
 * temperature, top_k, top_p, min_p. */
typedef struct dhlo_sampling {
  uint32_t struct_bytes;
  int32_t priority;          /* lower numbers go first; those of higher ones give up their blocks first; default 0 */
  int64_t max_tokens;        /* of each choice, at least 1; default 16 */
  double temperature;        /* 0: the most likely token, the first of equals; default 1 */
  int64_t top_k;             /* 0: all */
  double top_p;              /* above 0, at most 1; default 1 */
  double min_p;              /* 0 to 1; default 0 */
  double presence_penalty;   /* -2 to 2; default 0 */
  double frequency_penalty;  /* -2 to 2; default 0 */
  double repetition_penalty; /* above 0; default 1 */
  const int32_t* bias_tokens;
  const float* bias; /* added to the logits of bias_tokens; -infinity bars a token */
  int64_t num_bias;
  uint64_t seed; /* of random numbers, which also depend on the choice and the number of the token, and nothing else */
  int32_t has_seed; /* 0, the default: the system seeds */
  int32_t n;        /* choices, at most max_sequences; default 1 */
  int32_t logprobs; /* -1, the default: none; 0 to 20: those of each token and of so many most likely ones, before
                       temperature and what cuts */
  int32_t ignore_eos;
  const int32_t* stop_tokens;
  int64_t num_stop_tokens;
  const char* const* stops;  /* stop strings, bytes; none is empty */
  const int64_t* stop_bytes; /* of each; NULL: they end with a 0 */
  int64_t num_stops;
  int64_t timeout_ns; /* 0: none */
  const char* salt;   /* requests share what they begin with only with others of the same salt; NULL: "" */
  int64_t salt_bytes;
  int32_t speculate;   /* default 1: drafts may be verified for it, if the engine makes any. Tokens are the same */
  int32_t constrained; /* ask dhlo_engine_options.constrain */
  void* user;          /* given with events and to hooks */
  const char* adapter; /* the name of one that is loaded; NULL, the default: none */
  /* Beam search, with so many beams, at most max_sequences; 0, the default: none. Its n choices, at most beam_width,
   * are the best texts that it finds, the best one first, each told of by one event when it is over. Log-probabilities
   * are those before penalties and bias, which are applied to them. Nothing is drawn: with a temperature but 0 or 1,
   * top_k, top_p, min_p, with constraints, and with stop strings it is refused. Texts that it has at its deadline, or
   * when it is cancelled, are given. */
  int32_t beam_width;
  int32_t early_stopping; /* a dhlo_early_stopping; default DHLO_EARLY_STOPPING_SCORES */
  double length_penalty;  /* scores are sums of log-probabilities over this power of the number of tokens, -10 to 10;
                             default 1: larger numbers favour longer texts */
  const char* const*
      input_names;           /* what the engine's encoder takes of the request: all of its inputs, by name, dense */
  const dhlo_tensor* inputs; /* in memory. Refused by an engine without one */
  int64_t num_inputs;
} dhlo_sampling;

DHLO_API void dhlo_sampling_init(dhlo_sampling* sampling);
/* Takes a request of at least one token; `sampling` may be NULL. Returns at once; nothing given is needed after the
 * call. DHLO_INVALID_ARGUMENT for values out of range, and for a prompt that leaves no room for a token; DHLO_BUSY if
 * as many wait as may, and for an engine that is drained or closed. */
DHLO_API dhlo_status dhlo_engine_submit(dhlo_engine* engine, const int32_t* prompt, int64_t num_tokens,
                                        const dhlo_sampling* sampling, uint64_t* out);
/* Ends a request: at once if it hasn't begun, else with the step in work. Does nothing for one that has ended. */
DHLO_API dhlo_status dhlo_engine_cancel(dhlo_engine* engine, uint64_t request);
/* Waits for events, at most so long; below 0: without end. `*count` is 0 when the time is over. The events are valid
 * until the next call, whichever thread's: so let one thread poll. DHLO_CANCELLED, at once, when the engine is closed
 * and all have been fetched. */
DHLO_API dhlo_status dhlo_engine_poll(dhlo_engine* engine, int64_t timeout_ns, const dhlo_event* const** events,
                                      int64_t* count);
/* Of an engine without a thread: runs one step on this one. `*worked` (may be NULL) is 0 if there was nothing to do.
 * DHLO_BUSY while another thread does. A step that fails ends its requests, and is no failure here. */
DHLO_API dhlo_status dhlo_engine_step(dhlo_engine* engine, int32_t* worked);
/* Takes no more requests, and waits until those that there are have ended, at most so long; below 0: without end. An
 * engine without a thread runs steps meanwhile. DHLO_DEADLINE when the time is over. */
DHLO_API dhlo_status dhlo_engine_drain(dhlo_engine* engine, int64_t timeout_ns);

/* ---- adapters ------------------------------------------------------------------------------------------------------
 */

/* What an adapter (LoRA) adds to the product x W of a module: scale * x A^T B^T. Fields are only ever added behind the
 * last. Pairs of an array have one struct_bytes, and are so far apart. */
typedef struct dhlo_lora_pair {
  uint32_t struct_bytes;
  int32_t dtype;      /* of both matrices: DHLO_F32, the default, DHLO_BF16 or DHLO_F16 */
  const char* module; /* its name, or the end of it behind a dot, as far as that is one of a product that the step was
                         compiled to adapt ("layers.0.self_attn.q_proj") */
  int64_t rank, inputs, outputs;
  const void* a; /* [rank, inputs] */
  const void* b; /* [outputs, rank] */
  double scale;  /* default 1 */
} dhlo_lora_pair;
DHLO_API void dhlo_lora_pair_init(dhlo_lora_pair* pair);
/* Gives the step an adapter, by a name that none has: at once, while others are in use; nothing given is needed after
 * the call. DHLO_INVALID_ARGUMENT for what the step wasn't compiled for: modules, sizes, ranks. DHLO_BUSY if there are
 * as many as it has room for. */
DHLO_API dhlo_status dhlo_engine_load_adapter(dhlo_engine* engine, const char* name, const dhlo_lora_pair* pairs,
                                              int64_t num_pairs);
/* No more requests can have it. Those that have it end as they would, and its room is free then.
 * DHLO_INVALID_ARGUMENT if there is none of that name. */
DHLO_API dhlo_status dhlo_engine_unload_adapter(dhlo_engine* engine, const char* name);

/* Blocks outside of memory. */
typedef struct dhlo_tier_stats {
  int64_t bytes; /* there now, as far as is known, and blocks of this model among them */
  int64_t blocks;
  int64_t hits;     /* blocks that were brought from there */
  int64_t failures; /* what couldn't be written or read, or was damaged */
  int64_t dropped;  /* blocks that memory had no room for, and that came faster than they could be written */
} dhlo_tier_stats;

/* Positions of drafts whose accepted tokens are counted. */
#define DHLO_DRAFT_POSITIONS 16

typedef struct dhlo_engine_stats {
  uint32_t struct_bytes;
  int32_t reserved;
  int64_t running;       /* choices that hold blocks */
  int64_t waiting;       /* requests that haven't begun, and choices that gave up their blocks */
  int64_t steps;         /* that ran */
  int64_t prompt_tokens; /* computed, those of choices that gave up their blocks again */
  int64_t cached_tokens; /* of prompts, found in the cache */
  int64_t generated_tokens;
  int64_t preemptions;
  int64_t drafted_tokens;
  int64_t accepted_tokens;
  int64_t finished[6];    /* choices by dhlo_finish */
  int64_t blocks;         /* these four of the group of blocks that has most in use */
  int64_t blocks_used;    /* held by sequences */
  int64_t blocks_cached;  /* held by none, kept for those that begin alike */
  int64_t unused_slots;   /* of those in use, without a token */
  int64_t step_ns;        /* spent in runs of the model */
  int64_t host_ns;        /* spent between them while there was work: scheduling, cache, sampling, hooks */
  int64_t schedule_ns;    /* of host_ns, scheduling and cache */
  dhlo_tier_stats folder; /* zeros without cache_folder */
  int64_t drafts;         /* that were verified, drafted_tokens together */
  int64_t accepted_at[DHLO_DRAFT_POSITIONS]; /* of accepted_tokens, those that were first, second, ... of their draft */
  int64_t draft_steps;                       /* of the draft model */
  int64_t draft_failures;                    /* of them; their choices go on without drafts of it */
  int64_t draft_ns;                          /* spent in it; of neither step_ns nor host_ns */
  dhlo_tier_stats store;  /* zeros without cache_store; bytes and blocks are those that were put there */
  int64_t swaps;          /* of preemptions, those that were swapped out */
  int64_t swapped_bytes;  /* that they take now */
  int64_t evicted_blocks; /* that sequences went on without */
  int64_t encoded;        /* runs of the encoder */
  int64_t encoder_ns;     /* spent in them; of neither step_ns nor host_ns */
} dhlo_engine_stats;
/* As of the last step. */
DHLO_API dhlo_status dhlo_engine_get_stats(const dhlo_engine* engine, dhlo_engine_stats* out);

#ifdef __cplusplus
}
#endif
#endif
