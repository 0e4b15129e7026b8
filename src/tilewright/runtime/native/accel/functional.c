/* Functional simulator: runs tasks in the order of accel/order.py. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

typedef struct {
  tw_task_queue queues[TW_ACCEL_QUEUES];
  int32_t tokens[TW_ACCEL_QUEUES][TW_ACCEL_QUEUES]; /* from, to */
  int64_t *pushed; /* the task that pushed each of them: rings of `room` */
  int32_t first[TW_ACCEL_QUEUES][TW_ACCEL_QUEUES], room;
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

static int64_t *ring(const state *s, int32_t from, int32_t to, int32_t at) {
  int64_t pair = from * TW_ACCEL_QUEUES + to;
  return &s->pushed[pair * s->room + (s->first[from][to] + at) % s->room];
}

static int32_t step(const tw_accel_config *config, tw_accel_job *job, state *s, int32_t own,
                    tw_task_visit visit, void *context) {
  tw_task_queue *queue = &s->queues[own];
  const tw_task_word *task = &queue->task[queue->head];
  int64_t number = queue->number[queue->head], pushers[TW_ACCEL_QUEUES];
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    pushers[other] = -1;
    if (!(task->f[F_POP] >> other & 1)) continue;
    pushers[other] = *ring(s, other, own, 0);
    s->first[other][own] = (s->first[other][own] + 1) % s->room;
    --s->tokens[other][own];
  }
  int32_t code = visit(context, number, task, pushers);
  if (code != TW_OK) return code;
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    if (!(task->f[F_PUSH] >> other & 1)) continue;
    *ring(s, own, other, s->tokens[own][other]) = number;
    if (++s->tokens[own][other] > config->token_max) {
      return tw_job_error(job, TW_ACCEL_TOKENS, number, "%lld: a counter exceeds %d tokens",
                          (long long)number, config->token_max);
    }
  }
  if (task->op == TW_ACCEL_GEMM) job->counters[TW_COUNT_GEMM_STEPS] += tw_task_steps(task);
  ++job->counters[TW_COUNT_TASKS];
  queue->head = (queue->head + 1) % config->queue_depth;
  --queue->count;
  return TW_OK;
}

void tw_stream_walk(const tw_accel_config *config, tw_accel_job *job, tw_task_visit visit,
                    void *context) {
  int32_t depth = config->queue_depth, pairs = TW_ACCEL_QUEUES * TW_ACCEL_QUEUES;
  state s = {.room = config->token_max + 2};
  s.pushed = malloc((size_t)(pairs * s.room) * sizeof *s.pushed);
  if (!tw_queues_init(s.queues, depth) || !s.pushed) {
    tw_job_error(job, TW_ERROR_NO_MEMORY, -1, "not enough memory for the queues");
  }
  int64_t fetched = 0;
  tw_task_word next = {0};
  bool have = false;
  while (job->code == TW_OK && job->counters[TW_COUNT_TASKS] < job->tasks) {
    while (have || fetched < job->tasks) {
      if (!have && tw_task_decode(config, job, fetched, &next) != TW_OK) break;
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
    step(config, job, &s, chosen, visit, context);
  }
  tw_queues_free(s.queues);
  free(s.pushed);
}

typedef struct {
  tw_machine *machine;
  tw_accel_job *job;
  bool is_long; /* a task exceeds the time-out, unless others end meanwhile */
} execution;

static int32_t execute(void *context, int64_t number, const tw_task_word *task,
                       const int64_t *pushers) {
  (void)pushers;
  execution *e = context;
  int32_t code = tw_task_execute(e->machine, e->job, number, task, false);
  bool computes = task->op == TW_ACCEL_GEMM || task->op == TW_ACCEL_ALU;
  /* Maximal cycles of a step: three operands in one bank, or a reload. */
  int64_t reload = e->machine->config.requant_reload + 1, most = reload > 3 ? reload : 3;
  if (code == TW_OK && computes && tw_task_steps(task) > e->job->timeout_cycles / most) {
    e->is_long = e->is_long || tw_task_cycles(e->machine, task) > e->job->timeout_cycles;
  }
  return code;
}

static void run(void *opened, tw_accel_job *job) {
  execution e = {opened, job, false};
  tw_machine_clear(e.machine);
  tw_stream_walk(&e.machine->config, job, execute, &e);
  if (job->code != TW_OK || !e.is_long) return;
  tw_accel_job timed = *job; /* concurrent events are known only to the cycle model */
  timed.begin = timed.end = NULL;
  timed.seed = -1;
  memset(timed.counters, 0, sizeof timed.counters);
  tw_accel_timing.run(opened, &timed);
  if (timed.code != TW_OK) tw_job_error(job, timed.code, timed.task, "%s", timed.message);
}

const tw_accel_backend_api tw_accel_functional = {TW_ACCEL_VERSION, tw_machine_open, run,
                                                  tw_machine_close};
