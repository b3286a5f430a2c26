/* The contract between compiled code and the runtime that hosts it (not an embedder's header: see runtime.h).
 *
 * A compiled model exports one symbol, DHLO_ABI_SYMBOL, of type dhlo_abi_model. Everything in it is constant and lives
 * as long as the code is mapped. Compiled code allocates nothing, starts no thread and keeps no state: it asks the
 * dhlo_abi_call that is passed to it. All sizes are bytes unless said otherwise; all tensors in the arena are 64-byte
 * aligned.
 *
 * codegen/kernel_ir/abi.py mirrors the field offsets; tests/runtime/test_abi.py compares the two.
 */
#ifndef DHLO_ABI_H
#define DHLO_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DHLO_ABI_MAGIC 0x314f4c48444d4c53ull /* "SLMDHLO1" little-endian */
/* The only version that this runtime hosts: a model of another one is to be compiled again. */
#define DHLO_ABI_VERSION 12u
#define DHLO_ABI_SYMBOL "dhlo_model_v1"
#define DHLO_ABI_MAX_RANK 8
/* The largest dim that an input may have, so that sizes that are linear in dims can't overflow. The runtime sees to it.
 */
#define DHLO_ABI_MAX_DIM ((int64_t)0xffffffffffff)
/* What the other dims of an input without elements may multiply to: programs may go through its rows. The runtime sees
 * to it. */
#define DHLO_ABI_MAX_EMPTY ((int64_t)1 << 31)

/* Element types. Values are stored in files: append only. */
typedef enum dhlo_dtype {
  DHLO_BOOL = 0,
  DHLO_U8 = 1,
  DHLO_I8 = 2,
  DHLO_I16 = 3,
  DHLO_I32 = 4,
  DHLO_I64 = 5,
  DHLO_F16 = 6,
  DHLO_BF16 = 7,
  DHLO_F32 = 8,
  DHLO_F64 = 9,
  DHLO_C64 = 10,
  DHLO_C128 = 11,
  DHLO_F8E4M3FN = 12,
  DHLO_F8E5M2 = 13,
  DHLO_C32 = 14,
  DHLO_U64 = 15,
  DHLO_DTYPE_COUNT = 16
} dhlo_dtype;

/* A borrowed view of memory. sizes and strides (in elements, may be 0 for broadcast dims) have `rank` entries. */
typedef struct dhlo_tensor {
  void* data;
  const int64_t* sizes;
  const int64_t* strides; /* NULL means dense row-major */
  int32_t dtype;
  int32_t rank;
  int64_t capacity; /* bytes from data on that belong to the tensor's owner, all that sizes and strides reach included;
                       0: not told */
} dhlo_tensor;

typedef struct dhlo_abi_call dhlo_abi_call;

/* A custom operator in C, as dhlo.register_c_op describes it to the compiler: fills the outputs, whose memory and sizes
 * are given, from the inputs; all are dense row-major. Numbers are the operator's arguments that aren't tensors, in
 * their order. Returns 0, or another number to fail the call. Called on the thread that runs the model; must keep no
 * state. */
typedef union dhlo_number {
  int64_t i; /* int, bool, size */
  double f;  /* float */
} dhlo_number;
typedef int32_t (*dhlo_c_op)(const dhlo_tensor* inputs, dhlo_tensor* outputs, const dhlo_number* numbers);

/* A kernel works on items [begin, end) of its iteration space. `worker` is in [0, num_threads); `scratch` is private to
 * the worker, 64-byte aligned, at least as large as the launch asked for, with undefined content. */
typedef void (*dhlo_kernel)(const int64_t* args, int64_t begin, int64_t end, int64_t worker, void* scratch);

/* Services and bases handed to compiled code; the runtime owns it. Functions that return int32_t return 0 on success;
 * after a failure they have recorded the error and compiled code returns at once with that value. */
struct dhlo_abi_call {
  /* Data of the constant blob and of this session's mutable state. */
  const uint8_t* constants;
  uint8_t* state;
  int64_t num_threads; /* 1 to 1024 */
  /* At least `bytes` of arena segment `segment` (segments differ where sizes become known only as the program runs).
   * Contents are undefined; NULL on failure. */
  void* (*arena)(dhlo_abi_call* call, int64_t segment, int64_t bytes);
  /* Memory for output `index` with the given sizes, dense row-major; NULL on failure. Called once an output and call.
   */
  void* (*output)(dhlo_abi_call* call, int64_t index, int64_t rank, const int64_t* sizes);
  /* Runs `fn` over [0, count) split into chunks of at least `grain` items. `launch` indexes dhlo_abi_code.launches. */
  int32_t (*launch)(dhlo_abi_call* call, dhlo_kernel fn, const int64_t* args, int64_t count, int64_t grain,
                    int64_t scratch_bytes, int64_t launch);
  /* Records that check `check` (index into dhlo_abi_entry.checks) failed. Returns the status to return. */
  int32_t (*fail)(dhlo_abi_call* call, int64_t check, int64_t expected, int64_t got);
  /* The session's source of random numbers: [0] is its seed, [1] counts the draws since it was seeded. Code takes the
   * count as the number of its draw and adds 1. */
  int64_t* random;
  /* What the machine is like beyond its instructions: DHLO_MACHINE_FIELDS numbers, each at its dhlo_machine index. */
  const int64_t* machine;
  /* NULL in a run. In a call that plans, an array of DHLO_PLAN_FIELDS zeros, and services that only count: addresses
   * that they return are not NULL and point to nothing. Code then touches no memory but constants, and numbers that are
   * inputs of rank 0, whose data may be NULL. It goes the way of a run, but
   *  - first it calls `output` also for all outputs whose sizes the inputs tell, and sets plan[0] to a lower bound of
   * the arena: what is alive at once;
   *  - where the way depends on data it sets plan[1] to 1, and counts both branches and one turn of a loop;
   *  - where a size depends on data it sets plan[1] to 1 and returns 0. */
  int64_t* plan;
  /* Not 0 if the run was told to stop: code then returns the answer at once. `launch` asks by itself; code asks at each
   * turn of a loop, and, with `last` 1, before it replaces the content of states and arguments: what follows isn't
   * stopped any more, so that all of them are replaced or none. */
  int32_t (*poll)(dhlo_abi_call* call, int32_t last);
  /* Does dhlo_abi_entry.collectives[collective] with the other processes of its group: `count` elements of the dense
   * `input`, `out_count` of the dense `output`. `splits`, of an all-to-all: for each process the elements that go to
   * it, then for each those that come from it; else NULL. Addresses point to nothing in a call that plans. */
  int32_t (*collective)(dhlo_abi_call* call, int64_t collective, const void* input, int64_t count, void* output,
                        int64_t out_count, const int64_t* splits);
};
#define DHLO_PLAN_FIELDS 2

/* Facts of the machine that code runs on, for choosing block sizes, instructions and prefetches. Those from
 * DHLO_MACHINE_BF16_PERCENT on are measured when the first model is loaded, in at most some five milliseconds, and kept
 * for later processes (see dhlo_machine_configure in runtime.h). Only three of them can change a bit of a result:
 * DHLO_MACHINE_BF16_PERCENT and DHLO_MACHINE_TILES_PERCENT, which are one of few values, and the ratio of
 * DHLO_MACHINE_FMA*_PER_US to DHLO_MACHINE_L2_BYTES_PER_US, which code that sums in another order for it must round to
 * powers of two. */
typedef enum dhlo_machine {
  DHLO_MACHINE_L1D_BYTES = 0,     /* first-level data cache of a core: 8 KiB to 1 MiB */
  DHLO_MACHINE_L2_BYTES = 1,      /* second-level cache of a core: 128 KiB to 64 MiB */
  DHLO_MACHINE_L3_BYTES = 2,      /* third-level cache, 0 if there is none, to 4 GiB */
  DHLO_MACHINE_L3_CORES = 3,      /* hardware threads that share it: 1 to 1024 */
  DHLO_MACHINE_BF16_PERCENT = 4,  /* what an instruction multiplies of bf16 dot products in the time in which f32 FMAs
                                     multiply 100: 25, 50, 100 ... 800; 0 if the machine has no such instruction */
  DHLO_MACHINE_WAKE_NS = 5,       /* a launch on caller and another thread, which waits for it: 100 to 2,000 ns */
  DHLO_MACHINE_FMA128_PER_US = 6, /* f32 FMA instructions on vectors of so many bits, of one core in a */
  DHLO_MACHINE_FMA256_PER_US = 7, /* microsecond: 100 to 40,000 */
  DHLO_MACHINE_FMA512_PER_US = 8,
  DHLO_MACHINE_L2_BYTES_PER_US = 9,      /* what one core reads from its second-level cache: 500 to 4,000,000; */
  DHLO_MACHINE_L3_BYTES_PER_US = 10,     /* from the third; */
  DHLO_MACHINE_MEMORY_BYTES_PER_US = 11, /* from memory */
  DHLO_MACHINE_AHEAD_ONE = 12,  /* how many bytes ahead a stream from memory is prefetched for a product of one row, */
  DHLO_MACHINE_AHEAD_FEW = 13,  /* of a few rows, */
  DHLO_MACHINE_AHEAD_MORE = 14, /* of more: 256 to 32,768 */
  DHLO_MACHINE_TILES_PERCENT = 15, /* what products of matrix tiles multiply of bf16, as DHLO_MACHINE_BF16_PERCENT: 25,
                                      50, 100 ... 12,800; 0 if the machine has none, or the system doesn't let it */
} dhlo_machine;
#define DHLO_MACHINE_FIELDS 16

/* One thing the program relies on. `text` names the argument, what is expected and where it comes from; the runtime
 * appends the two numbers as the kind says. */
typedef enum dhlo_check_kind {
  DHLO_CHECK_RANK = 0,   /* got a rank, expected a rank */
  DHLO_CHECK_DTYPE = 1,  /* dhlo_dtype values */
  DHLO_CHECK_EQUAL = 2,  /* got a size, expected a size */
  DHLO_CHECK_MIN = 3,    /* got < expected */
  DHLO_CHECK_MAX = 4,    /* got > expected */
  DHLO_CHECK_ASSERT = 5, /* a condition that does not hold; numbers mean nothing */
  DHLO_CHECK_INDEX = 6,  /* an index out of range: got the index, expected the size */
  DHLO_CHECK_SIZE = 7    /* a size that doesn't fit; numbers mean nothing. No contract: the call is out of memory */
} dhlo_check_kind;
typedef struct dhlo_abi_check {
  int64_t kind;
  int64_t input; /* index of the argument it is about, or -1 */
  const char* text;
} dhlo_abi_check;

/* What the compiler knows of an argument or a result. sizes[i] is -1 where the dim is symbolic. */
typedef struct dhlo_abi_value {
  const char* name;
  int64_t dtype;
  int64_t rank;
  const int64_t* sizes;
  const char* const* dims; /* `rank` texts, e.g. "batch", "2*seq + 1", "64" */
} dhlo_abi_value;

/* Mutable state: `bytes` at `offset` of the state block, initially a copy of the constant blob at `init_offset`. */
typedef struct dhlo_abi_state {
  const char* name;
  int64_t offset, bytes, init_offset;
  int64_t dtype; /* of its elements */
  int64_t rank;
  const int64_t* sizes;
} dhlo_abi_state;

/* A size that differs from call to call, as the dims of values name it. */
typedef struct dhlo_abi_symbol {
  const char* name;
  int64_t min, max; /* what a call may give it; INT64_MAX: no bound */
} dhlo_abi_symbol;

typedef int32_t (*dhlo_abi_run)(dhlo_abi_call* call, const dhlo_tensor* inputs);

/* One kind of machine that the model has code for. */
typedef struct dhlo_abi_level {
  const char* name; /* the target as users spell it, e.g. "x86-64-v4+bf16"; may be "" for a model's only level */
  const char* cpu_features; /* comma-separated names as LLVM spells them, all needed, e.g. "avx2,avx512f" */
} dhlo_abi_level;
#define DHLO_ABI_MAX_LEVELS 16

/* An entry as code for one level. */
typedef struct dhlo_abi_code {
  dhlo_abi_run run;
  int64_t num_launches;
  const char* const* launches; /* kernel name of each launch site */
  int64_t num_segments;        /* arena segments */
} dhlo_abi_code;

/* What a program takes whose caches are pools of blocks, as indices of its inputs: T tokens of B sequences, packed one
 * sequence behind the other. Blocks are numbered from 0; one is `block_slots` slots in a row of every head of all pools
 * of its group. */
typedef struct dhlo_abi_pool {
  int64_t input; /* [heads, slots, depth], which a run writes to */
  int64_t group;
  int64_t keys;   /* of a pool of values: the pool of the keys that they go with; -1: it holds others, or both in one */
  int64_t scales; /* the pool [heads, slots, 1] of f32 by which the rows of this one are multiplied; -1: none */
} dhlo_abi_pool;
typedef struct dhlo_abi_page_group {
  int64_t slots;  /* i64 [T]: where what is computed of a token goes: block * block_slots + place in the block */
  int64_t tables; /* i32 [B, M]: the blocks of each sequence, in order */
  int64_t window; /* no token sees but so many keys, the last being its own: blocks before them aren't read; 0: all */
} dhlo_abi_page_group;
/* Adapters (LoRA): to a product x W of rows with a constant, x A B is added, with A and B of the adapter of each row.
 */
typedef struct dhlo_abi_adapted {
  const char* name; /* of the module whose weight the product multiplies by */
  int64_t offset;   /* of A [inputs, rank] in an adapter's weights, in elements; B [rank, outputs] follows */
  int64_t inputs;
  int64_t outputs;
} dhlo_abi_adapted;
typedef struct dhlo_abi_adapters {
  int64_t chosen;  /* input i32 [T]: the adapter of each token, below 0 none */
  int64_t weights; /* input [adapters, elements], which a run doesn't write to */
  int64_t rank;    /* that A and B have there; columns and rows behind those of a lower one are zeros */
  int64_t num_products;
  const dhlo_abi_adapted* products;
} dhlo_abi_adapters;
typedef struct dhlo_abi_paging {
  int64_t block_slots;
  int64_t positions; /* i64 [T]: of each token in its sequence; -1: the program takes none */
  int64_t starts;    /* i32 [B + 1]: the tokens of sequence b are starts[b] to starts[b + 1] - 1; from 0 to T */
  int64_t lengths;   /* i32 [B]: keys of each sequence, those of its tokens included, which are its last */
  int64_t num_groups;
  const dhlo_abi_page_group* groups;
  int64_t num_pools;
  const dhlo_abi_pool* pools;
  const dhlo_abi_adapters* adapters; /* NULL: none */
  int64_t max_positions;             /* tokens of a sequence at most, as tables of positions have rows; 0: any number */
  int64_t cells; /* i32 [B]: where in each of `states` a sequence's is, another place for each; -1 if there are none */
  int64_t num_states;
  const int64_t* states; /* [cells, ...] of static sizes, which a run writes to; one is read where a sequence's tokens
                            of the call aren't its first */
  int64_t by_order;      /* 1: tokens see the keys before them in tables and their own, whatever their positions are */
  int64_t cross_tables;  /* i32 [B, N]: the blocks of each sequence in the pools of `cross`, of block_slots slots; -1 if
                            there are none */
  int64_t cross_lengths; /* i32 [B]: the keys of each sequence there, all of which all of its tokens see */
  int64_t num_cross;
  const int64_t* cross; /* inputs [heads, slots, depth] that a run only reads: keys and values of what sequences are
                           about, as an encoder made them */
  int64_t hidden; /* i32 [T]: the bits of each token's number, from the lowest on, are the 32 keys before its own, of
                     which it doesn't see those that are set; -1: tokens of a sequence see all that are before them */
} dhlo_abi_paging;

/* What the processes of a group do together. Each of them runs those of a program in the same order. Append only. */
typedef enum dhlo_collective_kind {
  DHLO_ALL_REDUCE = 0,     /* each element of the output is that of all inputs, reduced */
  DHLO_ALL_GATHER = 1,     /* the inputs of all, in the order of the processes */
  DHLO_REDUCE_SCATTER = 2, /* the inputs of all, reduced; of that each gets an equal part, by its number */
  DHLO_ALL_TO_ALL = 3,     /* a part of the input goes to each process; the output is what comes, in their order */
  DHLO_BROADCAST = 4       /* the input of one process */
} dhlo_collective_kind;
typedef enum dhlo_reduction { DHLO_SUM = 0, DHLO_PRODUCT = 1, DHLO_MAX = 2, DHLO_MIN = 3 } dhlo_reduction;

/* Processes that run the program together, numbered from 0. */
typedef struct dhlo_abi_process_group {
  const char* name;
  int64_t size; /* how many there must be; 0: any number */
} dhlo_abi_process_group;
typedef struct dhlo_abi_collective {
  int64_t kind;      /* dhlo_collective_kind */
  int64_t group;     /* index in dhlo_abi_entry.process_groups */
  int64_t dtype;     /* of input and output */
  int64_t reduction; /* dhlo_reduction, where it reduces; else -1 */
  int64_t root;      /* of a broadcast the number of the process whose input all get; else -1 */
  const char* place; /* line of the source; may be "" */
} dhlo_abi_collective;

/* A program that can be called. The code of all levels computes the same. */
typedef struct dhlo_abi_entry {
  const char* name;          /* "" for a model's only entry; otherwise each has another */
  const char* metadata;      /* JSON in one line: contract, groups, kernels, plan; for tools */
  const dhlo_abi_code* code; /* one for each of dhlo_abi_model.levels */
  int64_t num_inputs;
  const dhlo_abi_value* inputs;
  int64_t num_outputs;
  const dhlo_abi_value* outputs;
  int64_t num_checks;
  const dhlo_abi_check* checks;
  int64_t num_updated;
  const int64_t* updated; /* indices of inputs that a run writes to, ascending */
  const int64_t* grows;   /* of each of these the dim, above 0, behind whose elements the run writes, too: as far as the
                             stride of the dim before reaches; -1 if there is none */
  int64_t num_symbols;
  const dhlo_abi_symbol* symbols;
  const dhlo_abi_paging* paging; /* NULL: its caches, if there are any, aren't pools of blocks */
  int64_t num_process_groups;
  const dhlo_abi_process_group* process_groups; /* that it runs in */
  int64_t num_collectives;
  const dhlo_abi_collective* collectives;
} dhlo_abi_entry;
#define DHLO_ABI_MAX_ENTRIES 1024

/* Entries share constants and states. */
typedef struct dhlo_abi_model {
  uint64_t magic;
  uint32_t version;
  uint32_t struct_bytes; /* sizeof(dhlo_abi_model) when compiled */
  const char* name;
  const char* producer;         /* "dhlo 0.1.0" */
  int64_t num_levels;           /* 1 to DHLO_ABI_MAX_LEVELS */
  const dhlo_abi_level* levels; /* a machine takes the last one that it can run */
  int64_t num_entries;          /* 1 to DHLO_ABI_MAX_ENTRIES */
  const dhlo_abi_entry* entries;
  int64_t num_states;
  const dhlo_abi_state* states;
  int64_t state_bytes;
  int64_t constants_bytes;
} dhlo_abi_model;

/* A model file is a row of sections, a table of them, and a trailer as its last bytes. The first section is the code,
 * an ELF shared object, so that tools take the file for one. Sections follow each other in the table's order; before
 * each and before the table there are fewer than DHLO_SECTION_ALIGN zero bytes. Numbers are little-endian.
 *
 * The digest of a section is the SHA-256 of the SHA-256 digests of its pieces of DHLO_DIGEST_PIECE bytes (the last may
 * be shorter; no bytes, no pieces), so that pieces can be hashed in parallel. The trailer has the SHA-256 of the table,
 * so the SHA-256 of the trailer, the file's digest, stands for the whole file: it is what a signature signs. The
 * runtime verifies all of it before it maps any code. dhlo/container.py reads and writes the same; the compiler's cache
 * uses it with sections and a magic of its own. */
#define DHLO_TRAILER_MAGIC 0x52544f4c48444c53ull
#define DHLO_WEIGHTS_MAGIC 0x54574f4c48444c53ull /* of a weights file: constants in a file of their own */
#define DHLO_FILE_FORMAT 3u
#define DHLO_SECTION_ALIGN 64
#define DHLO_DIGEST_PIECE (1 << 20)
#define DHLO_MAX_SECTIONS 256

/* A model file has code, metadata and features, and either constants or the name of the weights file that has them; it
 * may have a source. A weights file, which is the same row of sections with DHLO_WEIGHTS_MAGIC, begins with constants,
 * and may have code digests. None is there twice. Values are stored in files: append only. */
typedef enum dhlo_section_kind {
  DHLO_SECTION_CODE = 1,
  DHLO_SECTION_CONSTANTS = 2,
  DHLO_SECTION_METADATA = 3, /* dhlo_abi_entry.metadata of each entry, a line each; no newline at the end */
  DHLO_SECTION_FEATURES = 4, /* what each level needs, tested before the code is loaded: a line for each of
                                dhlo_abi_model.levels, "name: cpu_features", without ": " where the name is empty; no
                                newline at the end */
  DHLO_SECTION_SOURCE = 5,   /* what `dhlo update-weights` makes constants with, see dhlo/source.py; the runtime only
                                verifies it */
  DHLO_SECTION_WEIGHTS_FILE = 6, /* a dhlo_weights_file, and the weights file's name behind it, without a 0: a plain
                                    name, of a file in the model file's folder */
  DHLO_SECTION_CODE_DIGESTS = 7  /* digests of the sections of code that the constants were made for */
} dhlo_section_kind;

/* Which constants a model file is to find in its weights file: those of no other digest are loaded. */
typedef struct dhlo_weights_file {
  uint64_t bytes;
  uint8_t digest[32]; /* of the section */
} dhlo_weights_file;

typedef struct dhlo_section {
  uint32_t kind;
  uint32_t reserved; /* 0 */
  uint64_t offset;
  uint64_t bytes;
  uint8_t digest[32];
} dhlo_section;

typedef struct dhlo_trailer {
  uint64_t magic;
  uint32_t format;
  uint32_t abi;          /* dhlo_abi_model.version */
  uint64_t file_bytes;   /* whole file, trailer included */
  uint64_t table_offset; /* the table ends where the trailer begins */
  uint8_t table_digest[32];
} dhlo_trailer;

#ifdef __cplusplus
static_assert(sizeof(dhlo_tensor) == 40, "dhlo_tensor");
static_assert(sizeof(dhlo_abi_call) == 96, "dhlo_abi_call");
static_assert(sizeof(dhlo_abi_check) == 24, "dhlo_abi_check");
static_assert(sizeof(dhlo_abi_value) == 40, "dhlo_abi_value");
static_assert(sizeof(dhlo_abi_state) == 56, "dhlo_abi_state");
static_assert(sizeof(dhlo_abi_symbol) == 24, "dhlo_abi_symbol");
static_assert(sizeof(dhlo_abi_level) == 16, "dhlo_abi_level");
static_assert(sizeof(dhlo_abi_code) == 32, "dhlo_abi_code");
static_assert(sizeof(dhlo_abi_pool) == 32, "dhlo_abi_pool");
static_assert(sizeof(dhlo_abi_page_group) == 24, "dhlo_abi_page_group");
static_assert(sizeof(dhlo_abi_adapted) == 32, "dhlo_abi_adapted");
static_assert(sizeof(dhlo_abi_adapters) == 40, "dhlo_abi_adapters");
static_assert(sizeof(dhlo_abi_paging) == 152, "dhlo_abi_paging");
static_assert(sizeof(dhlo_abi_process_group) == 16, "dhlo_abi_process_group");
static_assert(sizeof(dhlo_abi_collective) == 48, "dhlo_abi_collective");
static_assert(sizeof(dhlo_abi_entry) == 152, "dhlo_abi_entry");
static_assert(sizeof(dhlo_abi_model) == 96, "dhlo_abi_model");
static_assert(sizeof(dhlo_section) == 56, "dhlo_section");
static_assert(sizeof(dhlo_trailer) == 64, "dhlo_trailer");
static_assert(sizeof(dhlo_weights_file) == 40, "dhlo_weights_file");
}
#endif
#endif
