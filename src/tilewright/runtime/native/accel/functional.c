/* The functional simulator: tasks one after the other, in the order that accel/order.py takes. */
#include <stdlib.h>

#include "machine.h"

static void *open_machine(const tw_accel_config *config) {
  tw_machine *machine = malloc(sizeof *machine);
  if (machine && !tw_machine_init(machine, config)) {
    free(machine);
    machine = NULL;
  }
  return machine;
}

static void close_machine(void *state) {
  tw_machine_free(state);
  free(state);
}

typedef struct {
  tw_task_queue queues[TW_ACCEL_QUEUES];
  int32_t tokens[TW_ACCEL_QUEUES][TW_ACCEL_QUEUES]; /* from, to */
} state;

static bool is_ready(const state *s, int32_t own) {
  const tw_task_queue *queue = &s->queues[own];
  if (!queue->count) return false;
  int64_t pops = queue->task[queue->head].f[F_POP];
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    if (pops >> other & 1 && !s->tokens[other][own]) return false;
  }
  return true;
}

static int32_t step(tw_machine *machine, tw_accel_job *job, state *s, int32_t own) {
  tw_task_queue *queue = &s->queues[own];
  const tw_task_word *task = &queue->task[queue->head];
  int64_t number = queue->number[queue->head];
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    s->tokens[other][own] -= task->f[F_POP] >> other & 1;
  }
  int32_t code = tw_task_execute(machine, job, number, task, false);
  if (code != TW_OK) return code;
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    s->tokens[own][other] += task->f[F_PUSH] >> other & 1;
    if (s->tokens[own][other] > machine->config.token_max) {
      return tw_job_error(job, TW_ACCEL_TOKENS, number, "%lld: a counter exceeds %d tokens",
                          (long long)number, machine->config.token_max);
    }
  }
  if (task->op == TW_ACCEL_GEMM) job->counters[TW_COUNT_GEMM_STEPS] += tw_task_steps(task);
  ++job->counters[TW_COUNT_TASKS];
  queue->head = (queue->head + 1) % machine->config.queue_depth;
  --queue->count;
  return TW_OK;
}

static void run(void *opened, tw_accel_job *job) {
  tw_machine *machine = opened;
  int32_t depth = machine->config.queue_depth;
  tw_machine_clear(machine);
  state s = {0};
  if (!tw_queues_init(s.queues, depth)) {
    tw_job_error(job, TW_ERROR_NO_MEMORY, -1, "not enough memory for the queues");
  }
  int64_t fetched = 0;
  tw_task_word next = {0};
  bool have = false;
  while (job->code == TW_OK && job->counters[TW_COUNT_TASKS] < job->tasks) {
    while (have || fetched < job->tasks) {
      if (!have && tw_task_decode(&machine->config, job, fetched, &next) != TW_OK) break;
      have = true;
      tw_task_queue *queue = &s.queues[next.queue];
      if (queue->count == depth) break;
      int32_t place = (queue->head + queue->count++) % depth;
      queue->task[place] = next;
      queue->number[place] = fetched++;
      have = false;
    }
    int32_t chosen = -1;
    int64_t least = job->tasks;
    for (int32_t own = 0; own < TW_ACCEL_QUEUES; ++own) {
      const tw_task_queue *queue = &s.queues[own];
      if (is_ready(&s, own) && queue->number[queue->head] < least) {
        least = queue->number[queue->head];
        chosen = own;
      }
    }
    if (job->code != TW_OK) break;
    if (chosen < 0) {
      tw_job_error(job, TW_ACCEL_TIMEOUT, -1, "the stream does not end: all tasks wait for tokens");
      break;
    }
    step(machine, job, &s, chosen);
  }
  tw_queues_free(s.queues);
}

const tw_accel_backend_api tw_accel_functional = {TW_ACCEL_VERSION, open_machine, run,
                                                  close_machine};
