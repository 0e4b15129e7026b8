/* Tilewright's C runtime: functions for compiled code, and for C programs that call it.
 *
 * Every compiled function has the type `tw_kernel`: it takes DLPack tensors and returns 0, or an
 * error code whose message `tw_last_error` returns. See docs/decisions/0002-kernel-abi.md.
 *
 * The runtime has no state that a caller must create: threads start on demand, scratch memory is
 * cached per thread, and every function here may be called from any thread at any time.
 */
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#include "dlpack.h"
#include "foreign.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Hidden by default: two copies of the runtime in one process, such as a loaded model's and the
 * compiler's, must not share symbols. */
#ifndef TW_API
#define TW_API __attribute__((visibility("hidden")))
#endif

/* A compiled function. Outputs are arguments too, supplied by the caller. */
typedef int32_t (*tw_kernel)(const DLTensor *const *args, int32_t n_args);

/* ---- errors ------------------------------------------------------------------------------- */

enum tw_code {
  TW_OK = 0,
  TW_ERROR_DTYPE = 1,      /* an element type other than the declared one */
  TW_ERROR_RANK = 2,       /* a wrong number of dimensions */
  TW_ERROR_SHAPE = 3,      /* a wrong extent, or one that contradicts another argument's */
  TW_ERROR_STRIDES = 4,    /* not compact, or strides that a tensor cannot have */
  TW_ERROR_DEVICE = 5,     /* memory of another device */
  TW_ERROR_READ_ONLY = 6,  /* an output that must not be written */
  TW_ERROR_ALIGNMENT = 7,  /* an address the code cannot use */
  TW_ERROR_OVERLAP = 8,    /* an output that shares memory with another argument */
  TW_ERROR_ARGUMENTS = 9,  /* a wrong number of arguments */
  TW_ERROR_NO_ARRAY = 10,  /* an argument that is not an array at all, or has no data */
  TW_ERROR_NO_MEMORY = 11, /* an allocation failed */
  TW_ERROR_CHECK = 12,     /* a check inside compiled code failed */
  TW_ERROR_INTERNAL = 13,  /* a bug of the runtime or the compiler */
  TW_ERROR_FOREIGN = 14,   /* a part without native code has no callback, or its callback failed */
  TW_ERROR_NO_DRIVER = 15, /* no driver, or driver or GPU too old */
  TW_ERROR_GPU = 16,       /* an error of the GPU driver */
  TW_ERROR_GPU_LOST = 17   /* a kernel's fault has destroyed the process's GPU context */
};

/* Record an error for the calling thread and return its code: `return tw_error(...)`. */
TW_API int32_t tw_error(int32_t code, const char *message);
TW_API int32_t tw_errorf(int32_t code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "FUNCTION: argument NAME: dimension AXIS is GOT, expected WANT", code TW_ERROR_SHAPE: for
 * extents that are expressions, which compiled code checks itself. */
TW_API int32_t tw_error_dim(const char *function, const char *name, int32_t axis, int64_t got,
                            int64_t want);

/* The calling thread's latest error. The text stays until that thread's next error. */
TW_API const char *tw_last_error(void);
TW_API int32_t tw_last_code(void);

/* ---- arguments ---------------------------------------------------------------------------- */

#define TW_DIM_ANY INT64_C(-1)               /* any extent */
#define TW_DIM_SYMBOL(k) (-2 - (int64_t)(k)) /* the k-th symbol of the signature */
#define TW_DEVICE_ANY 0

enum tw_param_flags {
  TW_PARAM_WRITABLE = 1, /* an output: must be writable and must not overlap another argument */
  TW_PARAM_STRIDED = 2,  /* any strides are accepted; otherwise compact, row major */
  TW_PARAM_ALIAS = 4,    /* an output that may share memory with other arguments */
  TW_PARAM_ANY_RANK = 8  /* an output of dynamic rank; `ndim` is 0 */
};

/* Requirements of a function on one argument. */
typedef struct {
  const char *name;
  const int64_t *shape; /* `ndim` entries: an extent, TW_DIM_ANY or TW_DIM_SYMBOL(k) */
  int32_t ndim;
  DLDataType dtype;
  int32_t device_type; /* a DLDeviceType; TW_DEVICE_ANY: the host or a GPU of CUDA */
  int32_t flags;       /* tw_param_flags */
  int32_t align;       /* bytes; 0 means the natural alignment of one element */
  int32_t reserved;    /* 0 */
} tw_param;

typedef struct {
  const char *name;
  const tw_param *params;
  const char *const *symbols; /* names of the sizes that arguments determine */
  int32_t n_params;
  int32_t n_symbols;
} tw_signature;

/* Check all arguments before native code touches memory: count, dtype, rank, device, extents,
 * strides, alignment, overlap. On success `symbols` (n_symbols entries) holds the symbols' values;
 * a symbol that no dimension mentions is -1. */
TW_API int32_t tw_check_args(const tw_signature *signature, const DLTensor *const *args,
                             int32_t n_args, int64_t *symbols);

/* The name of a dtype as the compiler prints it ("f32", "bf16x8"), written to `text`. */
enum { TW_DTYPE_NAME_SIZE = 24 };
TW_API const char *tw_dtype_name(DLDataType dtype, char text[TW_DTYPE_NAME_SIZE]);

/* ---- memory ------------------------------------------------------------------------------- */

enum { TW_ALIGN = 64 };

/* Memory aligned to TW_ALIGN (large blocks to huge pages), uninitialized; NULL, with an error
 * recorded, on failure. A size of 0 gives a valid address. */
TW_API void *tw_alloc(int64_t size_bytes);
TW_API void tw_free(void *memory);

/* Scratch memory during a call, from a cache of the calling thread. Any thread may free it. */
TW_API void *tw_workspace_alloc(int64_t size_bytes);
TW_API void tw_workspace_free(void *memory);
TW_API void tw_workspace_trim(void); /* free the calling thread's cache */

/* ---- threads ------------------------------------------------------------------------------ */

/* Work on indices [begin, end). Returns 0 or an error code. */
typedef int32_t (*tw_task)(void *env, int64_t begin, int64_t end);

/* Run `task` over [0, count) on at most `threads` threads, the caller among them; 0 means the
 * default. Ranges may run in any order. Inside another region the task runs on the calling thread.
 * Returns the first error; remaining ranges are then skipped. */
TW_API int32_t tw_parallel_for(tw_task task, void *env, int64_t count, int32_t threads);

/* The same, from the last index to the first on every other run of the task: the data touched last
 * may still be in a cache. */
TW_API int32_t tw_parallel_alternating(tw_task task, void *env, int64_t count, int32_t threads);

/* The default number of threads: the calling thread's setting, else the process's, else
 * TILEWRIGHT_NUM_THREADS, else the number of cores this process may use: not of hyperthreads, and
 * within the processor quota of its container. */
TW_API int32_t tw_threads(void);
TW_API void tw_set_threads(int32_t threads);        /* for the process; 0 restores */
TW_API int32_t tw_set_own_threads(int32_t threads); /* for this thread; returns the old */
TW_API void tw_shutdown(void); /* end idle workers; the next region starts new ones */

/* ---- models ------------------------------------------------------------------------------- */

typedef struct tw_model tw_model;
typedef struct tw_call tw_call;

/* One call in flight. Compiled code allocates memory through it; the caller decides where outputs
   are. */
struct tw_call {
  const void *const *constants; /* the model's weights, by index */
  /* Memory for an output, when its shape is known; NULL, with an error recorded, ends the call. */
  void *(*output)(tw_call *call, int32_t index, int32_t ndim, const int64_t *shape);
  void *caller;       /* for `output` */
  tw_foreign foreign; /* the model's */
  char *arena;
  int64_t arena_bytes;
  int64_t *plan; /* sizes, then offsets, of the last plan */
  int64_t plan_count;
  void **late; /* memory taken by tw_call_late */
  int32_t n_late, late_capacity;
  uint32_t float_mode; /* the caller's, restored when the call ends */
  tw_call *next;
};

/* A model's compiled code: checks its inputs, allocates outputs, computes. */
typedef int32_t (*tw_main)(tw_call *call, const DLTensor *const *inputs, int32_t n_inputs);

TW_API tw_model *tw_model_new(const void *const *constants);
TW_API void tw_model_free(tw_model *model);     /* no call may be in flight */
TW_API int64_t tw_model_bytes(tw_model *model); /* of the arenas of completed calls */
/* Run with the caller's outputs; args are the inputs, then the outputs. */
TW_API int32_t tw_model_call(tw_model *model, tw_main main, const char *name,
                             const DLTensor *const *args, int32_t n_args, int32_t n_inputs,
                             int32_t n_outputs);

/* Register the callbacks for parts without native code, for calls that begin from now on; or NULL.
 */
TW_API void tw_model_set_foreign(tw_model *model, const tw_foreign *foreign);

TW_API tw_call *tw_call_begin(tw_model *model);
TW_API void tw_call_end(tw_model *model, tw_call *call);

/* The call's arena, of at least this size. */
TW_API char *tw_call_arena(tw_call *call, int64_t size_bytes);
/* Offsets in the arena for values of these sizes; if the sizes are as in the last call, this is a
 * comparison. `spans` contains a pair per value: the first and the last step of its lifetime. */
TW_API const int64_t *tw_call_plan(tw_call *call, int32_t count, const int64_t *sizes,
                                   const int32_t *spans);
/* The same computation: offsets of `count` values, and the bytes of the arena, or -1. */
TW_API int64_t tw_plan_arena(int32_t count, const int64_t *sizes, const int32_t *spans,
                             int64_t *offsets);

/* Memory of data-dependent size; freed at the end of the call, if not dropped before. */
TW_API void *tw_call_late(tw_call *call, int64_t size_bytes);
TW_API void tw_call_drop(tw_call *call, void *memory);
TW_API void *tw_call_grow(tw_call *call, void *memory, int64_t used_bytes, int64_t size_bytes);

/* Run a part without native code, and copy its results, by the model's callbacks. `data` contains
 * the addresses and `dims` the concatenated extents of the tensors in `signature`. */
TW_API int32_t tw_call_foreign(tw_call *call, int32_t part, const tw_signature *signature,
                               void *const *data, const int64_t *dims, const int64_t *sizes,
                               int64_t *told);
TW_API int32_t tw_call_fetch(tw_call *call, int32_t part, const tw_signature *signature,
                             void *const *data, const int64_t *dims);

/* ---- profiling ---------------------------------------------------------------------------- */

/* The time now in nanoseconds, or 0 while the profiler is off. */
TW_API int64_t tw_profile_begin(void);
/* Record one run of `kernel` that began at `begin`; ignored if `begin` is 0. */
TW_API void tw_profile_end(const char *kernel, int64_t begin, int64_t flops, int64_t size_bytes);

typedef struct {
  const char *kernel; /* the profiler's own copy, valid for the life of the process */
  int64_t begin_ns, end_ns, flops, size_bytes, thread;
} tw_profile_event;

/* Switch recording of workers' shares of parallel regions, as runs without a name; and the time
 * now, or 0 while it is off. */
void tw_profile_shares(int32_t recorded);
int64_t tw_profile_begin_share(void);

TW_API int32_t tw_profile_start(int64_t capacity); /* discards earlier events */
TW_API void tw_profile_stop(void);
/* Copy the newest `limit` events, oldest first; returns their number. `*lost` counts all others
 * since the start. */
TW_API int64_t tw_profile_read(tw_profile_event *events, int64_t limit, int64_t *lost);

/* ---- models in separate libraries ------------------------------------------------------------ */

/* The data of a saved model's entry: `int32_t NAME(const DLTensor *const *args, int32_t n)`. */
typedef struct {
  const tw_signature *signature; /* of the inputs, then the outputs */
  tw_main main;
  const void *const *constants;
  void **instance; /* the tw_model, created by the first call */
  int32_t n_inputs;
  const tw_foreign *foreign; /* callbacks for its parts, if in the library, or NULL */
} tw_entry;

TW_API int32_t tw_run_model(const tw_entry *entry, const DLTensor *const *args, int32_t n_args);
/* `int32_t NAME_set_foreign(const tw_foreign *foreign)`, for models with parts without native code.
 */
TW_API int32_t tw_set_foreign(const tw_entry *entry, const tw_foreign *foreign);

enum { TW_RUNTIME_VERSION = 3 };

/* A library contains its own copy of the runtime. Callers that bypass its entry, as Python does,
 * use these functions with it, and never those of another copy. */
typedef struct {
  int32_t version, size_bytes; /* TW_RUNTIME_VERSION, sizeof(tw_runtime) */
  tw_model *(*model_new)(const void *const *constants);
  void (*model_free)(tw_model *model);
  void (*model_set_foreign)(tw_model *model, const tw_foreign *foreign);
  int64_t (*model_bytes)(tw_model *model);
  tw_call *(*call_begin)(tw_model *model);
  void (*call_end)(tw_model *model, tw_call *call);
  int32_t (*model_call)(tw_model *model, tw_main main, const char *name,
                        const DLTensor *const *args, int32_t n_args, int32_t n_inputs,
                        int32_t n_outputs);
  int32_t (*set_own_threads)(int32_t threads);
  const char *(*last_error)(void);
  int32_t (*profile_start)(int64_t capacity);
  void (*profile_stop)(void);
  int64_t (*profile_read)(tw_profile_event *events, int64_t limit, int64_t *lost);
} tw_runtime;

TW_API extern const tw_runtime tw_this_runtime;

/* ---- models on an NVIDIA GPU ---------------------------------------------------------------- */

enum tw_cuda_kind {
  TW_CUDA_NUMBER = 0, /* `value` itself */
  TW_CUDA_ARENA = 1,  /* the address of `value` in the arena */
  TW_CUDA_WEIGHT = 2, /* the address of `value` in the weights */
  TW_CUDA_INPUT = 3,  /* the address of `value` in the input `which` */
  TW_CUDA_OUTPUT = 4, /* the address of `value` in the output `which` */
  TW_CUDA_MAP = 5     /* a tensor map */
};

typedef struct {
  int32_t kind, which; /* a tw_cuda_kind; index of an input or output, else 0 */
  int64_t value;
} tw_cuda_argument;

typedef struct {
  const char *name;
  int32_t module, shared_bytes; /* dynamic shared memory */
} tw_cuda_kernel;

/* The tensor map of a matrix or several: boxes of 128-byte rows, swizzled. For channels-last images
 * the rows are lines: a box is one kernel position of windows of some pixels.
 */
typedef struct {
  tw_cuda_argument base;
  int64_t matrices, rows, columns; /* matrices 0: one, in two dimensions */
  int64_t channels;                /* of an image's pixels; else 0 */
  int32_t type;                    /* a CUtensorMapDataType */
  int32_t element_bytes, box_rows, box_columns;
  int32_t corners[6];   /* window origins: lowest y, x; highest y, x from the end; strides y, x */
  int32_t is_reordered; /* rows of a box by groups of 32: 8 q + 2 j + e is at 8 j + 2 q + e */
} tw_cuda_map;

/* Kinds of launches without a kernel of the model. */
enum tw_cuda_step {
  TW_CUDA_COPY = -1,   /* arguments: to, from, bytes */
  TW_CUDA_CHOICE = -2, /* argument: a condition; bodies: then, else */
  TW_CUDA_LOOP = -3    /* arguments: control, trip, limit, begins, at, going; one body */
};

/* A loop's state at `control`: the iteration, the trip count, the last condition. */
enum { TW_CUDA_LIMIT_AT = 8, TW_CUDA_COND_AT = 16 };

typedef struct {
  int32_t kernel; /* or a tw_cuda_step */
  uint32_t grid[3], block[3];
  int32_t first, n_arguments;  /* of `arguments` */
  int32_t first_wait, n_waits; /* of `waits`: launches that must have ended */
  int32_t starts_early;        /* it uses programmatic dependent launch on its branch */
  int32_t is_together;         /* a cooperative launch: all blocks are resident */
  int32_t first_body;          /* of `bodies`, if it is a choice or a loop */
} tw_cuda_launch;

/* A range of launches in `launches`. */
typedef struct {
  int32_t first, n_launches;
} tw_cuda_body;

/* All launches of a model for one set of sizes. */
typedef struct {
  const int64_t *sizes;
  const tw_cuda_body *bodies; /* the first is the model, others are of choices and loops */
  const tw_cuda_launch *launches;
  const tw_cuda_argument *arguments;
  const tw_cuda_map *maps;
  const int32_t *waits;
  const int64_t *tensor_bytes; /* of inputs, then outputs */
  const int64_t *output_shapes;
  int32_t n_bodies, n_launches, n_maps;
} tw_cuda_variant;

/* The source of a size in a call: an input and its dimension. */
typedef struct {
  const char *name;
  int32_t input, dimension;
} tw_cuda_size;

/* A model, for the sets of sizes that it was saved with. */
typedef struct {
  const char *const *ptx;
  const char *deciding; /* PTX of the kernels choose, begin and again, or NULL */
  const tw_cuda_kernel *kernels;
  const tw_cuda_variant *variants;
  const tw_cuda_size *sizes;
  const void *weights;
  const int32_t *output_ranks;
  void **instance;
  int64_t weights_bytes, arena_bytes; /* of the largest variant */
  int32_t n_modules, n_kernels, n_variants, n_sizes, n_inputs, n_outputs;
  int32_t n_states; /* the last inputs, which a call updates */
} tw_cuda_model;

/* Run a model and wait for its results. The environment variable TILEWRIGHT_CUDA_DRIVER names the
 * driver's library, by default libcuda.so.1. */
TW_API int32_t tw_cuda_run(tw_call *call, const tw_cuda_model *model, const DLTensor *const *inputs,
                           int32_t n_inputs);

/* Calls of this thread until tw_cuda_leave use the caller's stream. A call then returns before the
 * results are computed, unless some of its tensors are in host memory. */
TW_API void tw_cuda_enter(void *stream);
TW_API void tw_cuda_leave(void);

/* ---- processor ---------------------------------------------------------------------------- */

/* Ask the operating system for AMX tile registers, once per process. */
TW_API int32_t tw_request_tiles(void);

/* Floating point mode of this thread. x86 processors take over a hundred cycles for every subnormal
 * result; in flush mode it is 0 instead. Operands are not flushed, but packed weights contain no
 * subnormals. On other processors subnormal results cost nothing and are kept. */
TW_API uint32_t tw_float_mode(void);
TW_API void tw_set_float_mode(uint32_t mode);
TW_API uint32_t tw_flush_subnormals(void); /* returns the previous mode */

#ifdef __cplusplus
}
#endif

#endif
