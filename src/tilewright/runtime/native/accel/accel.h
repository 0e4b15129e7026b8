/* The driver of an accelerator: one interface for simulators, RTL and hardware.
 *
 *     tw_accel_open(words, count, NULL, &device);
 *     tw_accel_alloc(device, 4096, &x, &host);     a buffer with host and device copies
 *     memcpy(host, values, 4096);
 *     tw_accel_flush(device, x, 0, 4096);          copy to the device
 *     tw_accel_submit(device, stream, tasks, buffers, 4);
 *     tw_accel_wait(device, timeout_cycles);       TW_OK, or the code of a trap
 *     tw_accel_invalidate(device, y, 0, 4096);     copy to the host
 *
 * `open` takes a description of the machine, such as the layout of instruction fields, generated
 * from the instruction table. After a trap, `error` describes it, and the device is usable again at
 * the next submit.
 */
#ifndef TILEWRIGHT_ACCEL_H
#define TILEWRIGHT_ACCEL_H

#include "../tilewright.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codes beyond those of enum tw_code: ways in which a stream fails. */
enum tw_accel_code {
  TW_ACCEL_ILLEGAL = 32,   /* an instruction that does not decode, or is not permitted */
  TW_ACCEL_ADDRESS = 33,   /* outside of a memory or buffer, misaligned, or in an undeclared bank */
  TW_ACCEL_TOKENS = 34,    /* a counter of tokens overflows */
  TW_ACCEL_TIMEOUT = 35,   /* no event for too long */
  TW_ACCEL_UNWRITTEN = 36, /* a read of uninitialized memory; in simulators only */
  TW_ACCEL_BUS = 37,       /* a memory error response */
  TW_ACCEL_USAGE = 38      /* invalid use of the driver */
};

enum {
  TW_ACCEL_LOAD = 1,
  TW_ACCEL_AUX,
  TW_ACCEL_GEMM,
  TW_ACCEL_ALU,
  TW_ACCEL_STORE,
  TW_ACCEL_FINISH,
  TW_ACCEL_OPCODES
};
enum {
  TW_ACCEL_QUEUES = 5,
  TW_ACCEL_MEMORIES = 5,
  TW_ACCEL_LOOPS = 4,
  TW_ACCEL_BASES = 16,
  TW_ACCEL_BANKS = 4,
  TW_ACCEL_FORMATS = 4
};
enum { TW_INP, TW_WGT, TW_ACC, TW_UOP, TW_OUT };
enum { TW_ADD, TW_MAX, TW_MIN, TW_SHIFT, TW_MAC, TW_REQUANT, TW_MUL, TW_RESCALE, TW_FUNCTIONS };

/* Fields of all instructions; the description has their positions in this order. */
enum tw_accel_field {
  F_POP,
  F_PUSH,
  F_FMT,
  F_SRAM,
  F_BASE,
  F_OFFSET,
  F_X,
  F_Y,
  F_Z,
  F_XSTRIDE,
  F_YSTRIDE,
  F_ZSTRIDE,
  F_X0,
  F_X1,
  F_Y0,
  F_Y1,
  F_VALUE,
  F_UBEGIN,
  F_UEND,
  F_DST0,
  F_SRC0,
  F_AUX0,
  F_N_0,
  F_DST_0,
  F_SRC_0,
  F_AUX_0,
  F_N_1,
  F_DST_1,
  F_SRC_1,
  F_AUX_1,
  F_N_2,
  F_DST_2,
  F_SRC_2,
  F_AUX_2,
  F_N_3,
  F_DST_3,
  F_SRC_3,
  F_AUX_3,
  F_INIT,
  F_OVER,
  F_BANKS,
  F_FN,
  F_IMM,
  F_ZERO,
  F_LOW,
  F_HIGH,
  F_COUNT
};

typedef struct {
  int32_t at, bits, is_signed, choices; /* bits 0: no such field; choices 0: any value */
} tw_accel_bit_field;

/* The description: 32-bit numbers in this order. */
typedef struct {
  int32_t version;
  int32_t batch, block_in, block_out, taps;
  int32_t depth[TW_ACCEL_MEMORIES];
  int32_t bus_bytes, latency_cycles, word_bytes, opcode_bits;
  int32_t queue_depth, token_max, burst_beats, in_flight, ahead, fetch_ahead, requant_reload;
  int32_t alu_gap, max_steps;
  int32_t queue[TW_ACCEL_OPCODES], latency[TW_ACCEL_OPCODES], bits[TW_ACCEL_OPCODES];
  int32_t format_memory[TW_ACCEL_OPCODES][TW_ACCEL_FORMATS];
  int32_t format_bits[TW_ACCEL_OPCODES][TW_ACCEL_FORMATS]; /* bits of an element in DRAM */
  int32_t format_has_neighbours[TW_ACCEL_OPCODES][TW_ACCEL_FORMATS];
  tw_accel_bit_field fields[TW_ACCEL_OPCODES][F_COUNT];
  tw_accel_bit_field uop[3];
} tw_accel_config;
enum { TW_ACCEL_VERSION = 3 };

/* The kernels of simulators: functions compiled from the declared steps, of the common kernel type
 * (../tilewright.h). accel/kernels.py defines their arguments. */
typedef int32_t (*tw_accel_kernel)(const DLTensor *const *args, int32_t n_args);
typedef struct {
  tw_accel_kernel gemm, alu[TW_FUNCTIONS];
} tw_accel_kernels;

/* Memory latency in simulators, by a seed: random latency, or one of these. */
#define TW_ACCEL_NO_STALLS INT64_C(-1)      /* constant latency */
#define TW_ACCEL_SILENT_AFTER(k) (-2 - (k)) /* no responses after request k */
/* Flags of a seed, for RTL only: other simulators have no handshakes. */
#define TW_ACCEL_BACK_PRESSURE (INT64_C(1) << 32) /* random `ready` and `valid` */
#define TW_ACCEL_BUS_ERROR (INT64_C(1) << 33) /* SLVERR for the request with the seed's number */

/* A buffer of a stream. */
typedef struct {
  uint64_t address; /* in the device's address space, a multiple of 4 KB */
  int64_t bytes;
  uint8_t *device;  /* the device's copy */
  uint8_t *written; /* of every byte: whether it is initialized */
  int32_t is_writable;
} tw_accel_buffer;

enum {
  TW_COUNT_CYCLES,
  TW_COUNT_GEMM_STEPS,
  TW_COUNT_READ_BEATS,
  TW_COUNT_WRITE_BEATS,
  TW_COUNT_TASKS,
  TW_ACCEL_COUNTERS
};

/* One run of a stream, and its outcome. */
typedef struct {
  const uint8_t *words;
  int64_t tasks;
  int32_t buffers;
  tw_accel_buffer buffer[TW_ACCEL_BASES];
  int64_t timeout_cycles;
  int64_t seed;         /* of memory latency, see above */
  int64_t *begin, *end; /* of every task, or NULL; -1 if not executed */
  int64_t counters[TW_ACCEL_COUNTERS];
  int64_t task; /* the task of an error; -1: none */
  int32_t code;
  char message[224];
  const tw_accel_kernels *kernels; /* NULL: nothing is computed */
} tw_accel_job;

/* The interface of a backend. Libraries export one as `tw_accel_backend`. */
typedef struct {
  int32_t version;
  void *(*open)(const tw_accel_config *config); /* NULL: no memory, or unsupported machine */
  void (*run)(void *state, tw_accel_job *job);
  void (*close)(void *state);
} tw_accel_backend_api;

extern TW_API const tw_accel_backend_api tw_accel_functional, tw_accel_cycle, tw_accel_timing,
    tw_accel_verify;

/* ---- the driver --------------------------------------------------------------------------- */

typedef struct tw_accel tw_accel;

/* `backend`: "functional", "cycle", "timing" (cycles only, nothing is computed), "verify" (nothing
 * is computed: races, deadlocks and uninitialized reads are errors), or the path of a library.
 * `words` is a tw_accel_config. */
TW_API int32_t tw_accel_open(const int32_t *words, int64_t count, const char *backend,
                             tw_accel **device);
TW_API void tw_accel_close(tw_accel *device);
/* The kernels of a simulator, from now on; other backends need none. */
TW_API void tw_accel_use(tw_accel *device, const tw_accel_kernels *kernels);
TW_API int32_t tw_accel_alloc(tw_accel *device, int64_t bytes, int32_t *buffer, void **host);
TW_API int32_t tw_accel_free(tw_accel *device, int32_t buffer);
TW_API int32_t tw_accel_flush(tw_accel *device, int32_t buffer, int64_t at, int64_t bytes);
TW_API int32_t tw_accel_invalidate(tw_accel *device, int32_t buffer, int64_t at, int64_t bytes);
/* Base register k addresses buffer k of `buffers`; it is writable if bit k of `writable` is set.
 * The words are copied. */
TW_API int32_t tw_accel_submit(tw_accel *device, const void *words, int64_t tasks,
                               const int32_t *buffers, int32_t count, uint32_t writable);
TW_API int32_t tw_accel_wait(tw_accel *device, int64_t timeout_cycles);
TW_API int32_t tw_accel_counters(tw_accel *device, int64_t counters[TW_ACCEL_COUNTERS]);
/* Begin and end of the last stream's tasks; -1 if the backend has no count. */
TW_API int32_t tw_accel_times(tw_accel *device, const int64_t **begin, const int64_t **end,
                              int64_t *tasks);
TW_API void tw_accel_stalls(tw_accel *device, int64_t seed); /* memory latency, see above */
TW_API int32_t tw_accel_reset(tw_accel *device);             /* cancel a pending stream */
TW_API int32_t tw_accel_error(const tw_accel *device, int64_t *task, const char **message);

/* ---- streams ------------------------------------------------------------------------------ */

/* A buffer of a stream to be made. A `per_round` buffer has these bytes for each round; `code`: its
 * content if it is microcode. */
typedef struct {
  int64_t bytes;
  int32_t is_writable, per_round;
  const uint8_t *code;
} tw_accel_region;

/* Make the stream of `rounds` repetitions of another stream's tasks, followed by one finish:
 * ordered by tokens according to their accesses, each with the banks that it needs. Earlier tokens
 * are dropped. `made` has room for (tasks - 1) * rounds + 1 words. */
TW_API int32_t tw_accel_make(const tw_accel_config *config, const uint8_t *words, int64_t tasks,
                             int64_t rounds, const tw_accel_region *regions, int32_t count,
                             uint8_t *made);

#ifdef __cplusplus
}
#endif
#endif
