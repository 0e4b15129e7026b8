/* The stream verifier: accel/verify.py, faster. A backend that computes nothing: for every entry of
 * every memory, and every unit of the written buffers, it records the last task that wrote it and
 * the last task of each queue that read it since. An access that is not ordered after these by
 * queues and tokens is a race. It reports whether there is an error; accel/verify.py explains
 * it. */
#include <stdlib.h>
#include <string.h>

#include "hazards.h"

/* Positions in their queue of the tasks that pop from another, and how many have certainly
   ended. */
typedef struct {
  int64_t *position;
  int64_t count, over, pushes;
} counter;

typedef struct {
  tw_hazards hazards;
  counter counters[TW_ACCEL_QUEUES][TW_ACCEL_QUEUES]; /* from, to */
} verifier;

/* ---- accesses ----------------------------------------------------------------------------- */

static int32_t refuse(tw_hazards *v, int32_t code, const char *what) {
  return tw_job_error(v->job, code, v->number, "%d: %s", v->number, what);
}

static int32_t read_cell(tw_hazards *v, tw_shadow *b, int64_t cell) {
  int32_t *reader = &b->readers[v->queue[v->number] * b->size + cell], writer = b->writer[cell];
  if (*reader == v->number) return TW_OK;
  if (writer == TW_NO_TASK)
    return refuse(v, TW_ACCEL_UNWRITTEN, "it reads what nothing has written");
  if (!tw_hazards_is_ordered(v, writer))
    return refuse(v, TW_ACCEL_TOKENS, "a race with what was written");
  *reader = v->number;
  return TW_OK;
}

static int32_t write_cell(tw_hazards *v, tw_shadow *b, int64_t cell) {
  if (b->writer[cell] == v->number) return TW_OK;
  bool ordered = tw_hazards_is_ordered(v, b->writer[cell]);
  for (int32_t queue = 0; queue < TW_ACCEL_QUEUES; ++queue) {
    int32_t *reader = &b->readers[queue * b->size + cell];
    ordered = ordered && tw_hazards_is_ordered(v, *reader);
    *reader = TW_NO_TASK;
  }
  b->writer[cell] = v->number;
  return ordered ? TW_OK : refuse(v, TW_ACCEL_TOKENS, "a race with what it overwrites");
}

static int32_t touch(tw_hazards *v, tw_shadow *b, int64_t cell, bool is_write) {
  return is_write ? write_cell(v, b, cell) : read_cell(v, b, cell);
}

static int32_t visit_transfer(tw_hazards *v, const tw_task_word *t) {
  const tw_accel_config *c = &v->machine->config;
  bool is_store = t->op == TW_ACCEL_STORE;
  int32_t memory = c->format_memory[t->op][t->f[F_FMT]], code = TW_OK;
  int64_t entries = tw_task_entries(t), width = tw_format_bytes(c, t);
  for (int64_t i = 0; i < entries && code == TW_OK; ++i) {
    int64_t place = t->f[F_SRAM] + i;
    if (is_store && memory == TW_ACC && !(t->f[F_BANKS] >> v->machine->bank[place] & 1)) {
      return refuse(v, TW_ACCEL_ADDRESS, "a bank that it does not name");
    }
    code = touch(v, &v->memory[memory], place, !is_store);
  }
  tw_shadow *b = &v->buffer[t->f[F_BASE]];
  if (!b->size) return code; /* memory that no task writes needs no shadow */
  for (int64_t z = 0; z < t->f[F_Z]; ++z) {
    for (int64_t y = 0; y < t->f[F_Y]; ++y) {
      for (int64_t x = 0; x < t->f[F_X]; ++x) {
        int64_t entry = z * t->f[F_ZSTRIDE] + y * t->f[F_YSTRIDE] + x * t->f[F_XSTRIDE];
        int64_t first = (t->f[F_OFFSET] + entry * width) / b->unit;
        for (int64_t i = 0; i < width / b->unit && code == TW_OK; ++i) {
          code = touch(v, b, first + i, is_store);
        }
      }
    }
  }
  return code;
}

static int32_t visit_step(void *context, const tw_task_word *t, const tw_step *s) {
  tw_hazards *v = context;
  int32_t code = TW_OK;
  if (t->op == TW_ACCEL_GEMM) {
    tw_shadow *acc = &v->memory[TW_ACC];
    code = read_cell(v, &v->memory[TW_INP], s->src);
    if (code == TW_OK) code = read_cell(v, &v->memory[TW_WGT], s->aux);
    if (code != TW_OK || acc->writer[s->dst] == v->number) return code;
    if (!(t->f[F_BANKS] >> v->machine->bank[s->dst] & 1)) {
      return refuse(v, TW_ACCEL_ADDRESS, "a bank that it does not name");
    }
    if (!s->first) code = read_cell(v, acc, s->dst);
    return code == TW_OK ? write_cell(v, acc, s->dst) : code;
  }
  bool requant = tw_requantizes(t), is_late = t->f[F_FN] == TW_RESCALE;
  int64_t reads[5] = {s->src}, count = 1;
  for (int64_t i = 0; i < (requant ? 3 : !t->f[F_IMM]); ++i) reads[count++] = s->aux + i;
  if (t->f[F_FN] == TW_MAC) reads[count++] = s->dst;
  tw_shadow *acc = &v->memory[TW_ACC], *to = t->f[F_FN] == TW_REQUANT ? &v->memory[TW_OUT] : acc;
  for (int64_t i = 0; i < count && code == TW_OK; ++i) {
    if (!(t->f[F_BANKS] >> v->machine->bank[reads[i]] & 1)) {
      return refuse(v, TW_ACCEL_ADDRESS, "a bank that it does not name");
    }
    if (is_late && acc->writer[reads[i]] == v->number) {
      return refuse(v, TW_ACCEL_ADDRESS, "it reads what it has written");
    }
    code = read_cell(v, acc, reads[i]);
  }
  if (to == acc && !(t->f[F_BANKS] >> v->machine->bank[s->dst] & 1)) {
    return refuse(v, TW_ACCEL_ADDRESS, "a bank that it does not name");
  }
  return code == TW_OK ? write_cell(v, to, s->dst) : code;
}

/* ---- order -------------------------------------------------------------------------------- */

static int32_t count_tokens(verifier *v, const tw_task_word *t) {
  tw_hazards *b = &v->hazards;
  int32_t own = t->queue;
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    if (t->f[F_POP] >> other & 1) {
      counter *c = &v->counters[other][own];
      c->position[c->count++] = b->position[b->number];
    }
    if (t->f[F_PUSH] >> other & 1) {
      counter *c = &v->counters[own][other];
      int32_t ended = b->clock[b->number][other];
      while (c->over < c->count && c->position[c->over] < ended) ++c->over;
      if (++c->pushes - c->over > b->machine->config.token_max) {
        return refuse(b, TW_ACCEL_TOKENS, "a counter may exceed what it holds");
      }
    }
  }
  return TW_OK;
}

static int32_t visit(void *context, int64_t number, const tw_task_word *t, const int64_t *pushers) {
  verifier *v = context;
  tw_hazards *b = &v->hazards;
  tw_hazards_begin(b, number, t->queue);
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    if (pushers[other] != TW_NO_TASK) tw_hazards_follow(b, pushers[other]);
  }
  int32_t code = count_tokens(v, t);
  if (code == TW_OK && (t->op == TW_ACCEL_GEMM || t->op == TW_ACCEL_ALU)) {
    for (int64_t i = t->f[F_UBEGIN]; i < t->f[F_UEND] && code == TW_OK; ++i) {
      if (i >= b->memory[TW_UOP].size) break; /* rejected below */
      code = read_cell(b, &b->memory[TW_UOP], i);
    }
  }
  if (tw_task_steps(t) > b->machine->config.max_steps) {
    code = refuse(b, TW_ACCEL_TIMEOUT, "more steps than a watchdog lets pass");
  }
  if (code == TW_OK) code = tw_task_execute(b->machine, b->job, number, t, true);
  if (code != TW_OK || t->op == TW_ACCEL_FINISH) return code;
  if (t->op != TW_ACCEL_GEMM && t->op != TW_ACCEL_ALU) return visit_transfer(b, t);
  return tw_task_walk(b->machine, b->job, number, t, visit_step, b);
}

/* Check that no tokens are left, and that `finish` is ordered after everything. */
static void check_end(verifier *v) {
  tw_hazards *b = &v->hazards;
  b->number = (int32_t)(b->job->tasks - 1);
  const int32_t *clock = b->clock[b->number];
  for (int32_t from = 0; from < TW_ACCEL_QUEUES; ++from) {
    int32_t tasks = b->begun[from] - (from == b->queue[b->number]);
    if (clock[from] < tasks) refuse(b, TW_ACCEL_TOKENS, "it does not wait for every task");
    for (int32_t to = 0; to < TW_ACCEL_QUEUES; ++to) {
      const counter *c = &v->counters[from][to];
      if (c->pushes != c->count) refuse(b, TW_ACCEL_TOKENS, "tokens are left over");
    }
  }
}

/* ---- the backend -------------------------------------------------------------------------- */

static void run(void *opened, tw_accel_job *job) {
  verifier v = {0};
  tw_machine_clear(opened);
  bool ok = tw_hazards_init(&v.hazards, opened, job);
  counter *every = &v.counters[0][0];
  for (int32_t i = 0; i < TW_ACCEL_QUEUES * TW_ACCEL_QUEUES; ++i) {
    every[i].position = malloc((size_t)job->tasks * sizeof(int64_t));
    ok = ok && every[i].position;
  }
  if (!ok) {
    tw_job_error(job, TW_ERROR_NO_MEMORY, -1, "not enough memory for the verifier");
  } else if (job->code == TW_OK) {
    tw_stream_walk(&v.hazards.machine->config, job, visit, &v);
  }
  if (job->code == TW_OK) check_end(&v);
  for (int32_t i = 0; i < TW_ACCEL_QUEUES * TW_ACCEL_QUEUES; ++i) free(every[i].position);
  tw_hazards_free(&v.hazards);
}

const tw_accel_backend_api tw_accel_verify = {TW_ACCEL_VERSION, tw_machine_open, run,
                                              tw_machine_close};
