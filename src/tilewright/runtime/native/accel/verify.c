/* The verifier: accel/verify.py, faster. A backend that computes nothing: of every entry of every
 * memory, and of every unit of the buffers that are written, it keeps the last task that wrote it
 * and the last task of each queue that read it since. An access that queues and tokens do not order
 * behind these is a race. It tells that something is wrong; accel/verify.py tells what. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { NOBODY = -1 };

typedef struct {
  int64_t size, unit;        /* cells; bytes of one, of a buffer */
  int32_t *writer, *readers; /* by cell; by queue and cell */
} book;

/* Places in their queue of the tasks that pop from another, and how many are surely over. */
typedef struct {
  int64_t *place;
  int64_t count, over, pushes;
} counter;

typedef struct {
  tw_machine *machine;
  tw_accel_job *job;
  book memory[TW_ACCEL_MEMORIES], buffer[TW_ACCEL_BASES];
  counter counters[TW_ACCEL_QUEUES][TW_ACCEL_QUEUES]; /* from, to */
  int32_t (*clock)[TW_ACCEL_QUEUES]; /* of every task: those that ended before it begins */
  int32_t *place;
  uint8_t *queue;
  int64_t last[TW_ACCEL_QUEUES];
  int32_t begun[TW_ACCEL_QUEUES];
  int32_t number; /* the task that is looked at */
} verifier;

static bool make_book(book *b, int64_t size, int64_t unit) {
  size_t cells = (size_t)tw_max64(size, 1);
  *b = (book){size, unit, malloc(cells * sizeof(int32_t)),
              malloc(TW_ACCEL_QUEUES * cells * sizeof(int32_t))};
  if (!b->writer || !b->readers) return false;
  memset(b->writer, 0xFF, cells * sizeof(int32_t));
  memset(b->readers, 0xFF, TW_ACCEL_QUEUES * cells * sizeof(int32_t));
  return true;
}

static void free_book(book *b) { free(b->writer), free(b->readers); }

/* ---- accesses ----------------------------------------------------------------------------- */

static bool is_ordered(const verifier *v, int32_t other) {
  return other == NOBODY || other == v->number ||
         v->clock[v->number][v->queue[other]] > v->place[other];
}

static int32_t refuse(verifier *v, int32_t code, const char *what) {
  return tw_job_error(v->job, code, v->number, "%d: %s", v->number, what);
}

static int32_t read_cell(verifier *v, book *b, int64_t cell) {
  int32_t *reader = &b->readers[v->queue[v->number] * b->size + cell], writer = b->writer[cell];
  if (*reader == v->number) return TW_OK;
  if (writer == NOBODY) return refuse(v, TW_ACCEL_UNWRITTEN, "it reads what nothing has written");
  if (!is_ordered(v, writer)) return refuse(v, TW_ACCEL_TOKENS, "a race with what was written");
  *reader = v->number;
  return TW_OK;
}

static int32_t write_cell(verifier *v, book *b, int64_t cell) {
  if (b->writer[cell] == v->number) return TW_OK;
  bool ordered = is_ordered(v, b->writer[cell]);
  for (int32_t queue = 0; queue < TW_ACCEL_QUEUES; ++queue) {
    int32_t *reader = &b->readers[queue * b->size + cell];
    ordered = ordered && is_ordered(v, *reader);
    *reader = NOBODY;
  }
  b->writer[cell] = v->number;
  return ordered ? TW_OK : refuse(v, TW_ACCEL_TOKENS, "a race with what it overwrites");
}

static int32_t touch(verifier *v, book *b, int64_t cell, bool is_write) {
  return is_write ? write_cell(v, b, cell) : read_cell(v, b, cell);
}

static int32_t visit_transfer(verifier *v, const tw_task_word *t) {
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
  book *b = &v->buffer[t->f[F_BASE]];
  if (!b->size) return code; /* what no task writes needs no book */
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
  verifier *v = context;
  int32_t code = TW_OK;
  if (t->op == TW_ACCEL_GEMM) {
    book *acc = &v->memory[TW_ACC];
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
  book *acc = &v->memory[TW_ACC], *to = t->f[F_FN] == TW_REQUANT ? &v->memory[TW_OUT] : acc;
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

static void follow(verifier *v, int64_t earlier) {
  int32_t *clock = v->clock[v->number];
  const int32_t *its = v->clock[earlier];
  for (int32_t i = 0; i < TW_ACCEL_QUEUES; ++i) clock[i] = its[i] > clock[i] ? its[i] : clock[i];
  int32_t queue = v->queue[earlier], behind = v->place[earlier] + 1;
  clock[queue] = behind > clock[queue] ? behind : clock[queue];
}

static int32_t count_tokens(verifier *v, const tw_task_word *t) {
  int32_t own = t->queue;
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    if (t->f[F_POP] >> other & 1) {
      counter *c = &v->counters[other][own];
      c->place[c->count++] = v->place[v->number];
    }
    if (t->f[F_PUSH] >> other & 1) {
      counter *c = &v->counters[own][other];
      int32_t ended = v->clock[v->number][other];
      while (c->over < c->count && c->place[c->over] < ended) ++c->over;
      if (++c->pushes - c->over > v->machine->config.token_max) {
        return refuse(v, TW_ACCEL_TOKENS, "a counter may exceed what it holds");
      }
    }
  }
  return TW_OK;
}

static int32_t visit(void *context, int64_t number, const tw_task_word *t, const int64_t *met) {
  verifier *v = context;
  int32_t own = t->queue;
  v->number = (int32_t)number;
  v->queue[number] = (uint8_t)own;
  v->place[number] = v->begun[own]++;
  memset(v->clock[number], 0, sizeof v->clock[number]);
  if (v->last[own] != NOBODY) follow(v, v->last[own]);
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    if (met[other] != NOBODY) follow(v, met[other]);
  }
  v->last[own] = number;
  int32_t code = count_tokens(v, t);
  if (code == TW_OK && (t->op == TW_ACCEL_GEMM || t->op == TW_ACCEL_ALU)) {
    for (int64_t i = t->f[F_UBEGIN]; i < t->f[F_UEND] && code == TW_OK; ++i) {
      if (i >= v->memory[TW_UOP].size) break; /* refused below */
      code = read_cell(v, &v->memory[TW_UOP], i);
    }
  }
  if (code == TW_OK) code = tw_task_execute(v->machine, v->job, number, t, true);
  if (code != TW_OK || t->op == TW_ACCEL_FINISH) return code;
  if (t->op != TW_ACCEL_GEMM && t->op != TW_ACCEL_ALU) return visit_transfer(v, t);
  return tw_task_walk(v->machine, v->job, number, t, visit_step, v);
}

/* Nothing left over, and `finish` behind everything. */
static void check_end(verifier *v) {
  const int32_t *clock = v->clock[v->job->tasks - 1];
  v->number = (int32_t)(v->job->tasks - 1);
  for (int32_t from = 0; from < TW_ACCEL_QUEUES; ++from) {
    int32_t tasks = v->begun[from] - (from == v->queue[v->number]);
    if (clock[from] < tasks) refuse(v, TW_ACCEL_TOKENS, "it does not wait for every task");
    for (int32_t to = 0; to < TW_ACCEL_QUEUES; ++to) {
      const counter *c = &v->counters[from][to];
      if (c->pushes != c->count) refuse(v, TW_ACCEL_TOKENS, "tokens are left over");
    }
  }
}

/* ---- the backend -------------------------------------------------------------------------- */

static int64_t divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Bytes in which the buffers that tasks write are booked: all accesses are multiples of it. */
static bool make_books(verifier *v) {
  const tw_accel_config *c = &v->machine->config;
  int64_t unit[TW_ACCEL_BASES] = {0};
  tw_task_word t;
  for (int64_t at = 0; at < v->job->tasks; ++at) {
    if (tw_task_decode(c, v->job, at, &t) != TW_OK) return true;
    if (c->fields[t.op][F_BASE].bits == 0) continue;
    int64_t *found = &unit[t.f[F_BASE]];
    *found = divisor(divisor(*found, t.f[F_OFFSET]), tw_format_bytes(c, &t));
  }
  for (int32_t i = 0; i < v->job->buffers; ++i) {
    const tw_accel_buffer *b = &v->job->buffer[i];
    if (!b->is_writable || !unit[i]) continue;
    int64_t bytes = divisor(unit[i], b->bytes);
    if (bytes && !make_book(&v->buffer[i], b->bytes / bytes, bytes)) return false;
  }
  for (int32_t i = 0; i < TW_ACCEL_MEMORIES; ++i) {
    if (!make_book(&v->memory[i], c->depth[i], 1)) return false;
  }
  return true;
}

static void run(void *opened, tw_accel_job *job) {
  verifier v = {.machine = opened, .job = job};
  size_t tasks = (size_t)job->tasks;
  tw_machine_clear(v.machine);
  v.clock = malloc(tasks * sizeof *v.clock);
  v.place = malloc(tasks * sizeof *v.place);
  v.queue = malloc(tasks);
  bool ok = v.clock && v.place && v.queue && make_books(&v);
  for (int32_t from = 0; from < TW_ACCEL_QUEUES; ++from) {
    v.last[from] = NOBODY;
    for (int32_t to = 0; to < TW_ACCEL_QUEUES; ++to) {
      v.counters[from][to].place = malloc(tasks * sizeof(int64_t));
      ok = ok && v.counters[from][to].place;
    }
  }
  if (!ok) {
    tw_job_error(job, TW_ERROR_NO_MEMORY, -1, "not enough memory for the verifier");
  } else if (job->code == TW_OK) {
    tw_stream_walk(&v.machine->config, job, visit, &v);
  }
  if (job->code == TW_OK) check_end(&v);
  for (int32_t i = 0; i < TW_ACCEL_MEMORIES; ++i) free_book(&v.memory[i]);
  for (int32_t i = 0; i < TW_ACCEL_BASES; ++i) free_book(&v.buffer[i]);
  for (int32_t from = 0; from < TW_ACCEL_QUEUES; ++from) {
    for (int32_t to = 0; to < TW_ACCEL_QUEUES; ++to) free(v.counters[from][to].place);
  }
  free(v.clock), free(v.place), free(v.queue);
}

const tw_accel_backend_api tw_accel_verify = {TW_ACCEL_VERSION, tw_machine_open, run,
                                              tw_machine_close};
