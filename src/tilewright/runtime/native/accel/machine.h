/* Shared by the simulators: decoded tasks, scratchpads, the execution of one task. */
#ifndef TILEWRIGHT_ACCEL_MACHINE_H
#define TILEWRIGHT_ACCEL_MACHINE_H

#include <stdbool.h>

#include "accel.h"

typedef struct {
  int32_t op, queue;
  int64_t f[F_COUNT];
} tw_task_word;

/* The steps of a GEMM or ALU task in sequence. */
typedef struct {
  int64_t dst, src, aux;
  bool first;
} tw_step;

typedef struct {
  tw_accel_config config;
  int8_t *inp, *wgt, *out;
  int32_t *acc; /* one extra entry: an operand that is a number */
  uint64_t *uop;
  uint8_t *written[TW_ACCEL_MEMORIES];
  uint8_t *bank;                      /* of every entry of acc */
  DLTensor tensor[TW_ACCEL_MEMORIES]; /* in the form of kernel arguments */
  int64_t shape[TW_ACCEL_MEMORIES][3];
} tw_machine;

/* Queues and tokens, without timing. */
typedef struct {
  tw_task_word *task; /* a ring per queue */
  int64_t *number;
  int32_t head, count;
} tw_task_queue;

bool tw_machine_init(tw_machine *machine, const tw_accel_config *config);
void tw_machine_free(tw_machine *machine);
void tw_machine_clear(tw_machine *machine);           /* mark everything as uninitialized */
void *tw_machine_open(const tw_accel_config *config); /* allocate one, for backends */
void tw_machine_close(void *machine);

/* Record the first error of a job; returns its code. */
int32_t tw_job_error(tw_accel_job *job, int32_t code, int64_t task, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

int32_t tw_task_decode(const tw_accel_config *config, tw_accel_job *job, int64_t number,
                       tw_task_word *task);
/* Run one task, or reject it. With `timing_only` only loads of microcode are run. */
int32_t tw_task_execute(tw_machine *machine, tw_accel_job *job, int64_t number,
                        const tw_task_word *task, bool timing_only);
/* Visit every step of a GEMM or ALU task, while the visitor returns TW_OK. */
typedef int32_t (*tw_step_visit)(void *context, const tw_task_word *task, const tw_step *step);
int32_t tw_task_walk(const tw_machine *machine, tw_accel_job *job, int64_t number,
                     const tw_task_word *task, tw_step_visit visit, void *context);
/* Visit every task in the order of accel/order.py; `pushers`: the tasks that pushed the tokens that
 * it pops.
 */
typedef int32_t (*tw_task_visit)(void *context, int64_t number, const tw_task_word *task,
                                 const int64_t *pushers);
void tw_stream_walk(const tw_accel_config *config, tw_accel_job *job, tw_task_visit visit,
                    void *context);
int64_t tw_task_steps(const tw_task_word *task);
int64_t tw_task_entries(const tw_task_word *task);
int64_t tw_format_bytes(const tw_accel_config *config, const tw_task_word *task);

/* Cycles in which a task issues steps. */
int64_t tw_task_cycles(const tw_machine *machine, const tw_task_word *task);

/* Whether an ALU task requantizes: to `out`, or back to `acc`. */
static inline bool tw_requantizes(const tw_task_word *task) {
  return task->op == TW_ACCEL_ALU && (task->f[F_FN] == TW_REQUANT || task->f[F_FN] == TW_RESCALE);
}

bool tw_queues_init(tw_task_queue queues[TW_ACCEL_QUEUES], int32_t depth);
void tw_queues_free(tw_task_queue queues[TW_ACCEL_QUEUES]);

static inline int64_t tw_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tw_max64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
