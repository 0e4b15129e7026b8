/* Make streams: the tasks of one round, repeated for the requested number of rounds, ordered by
 * tokens.
 *
 * Tasks are given in a valid sequential order. A task must wait for an earlier one of another queue
 * if one of them writes what the other accesses: true, anti and output dependences, across loops,
 * virtual threads, layers and rounds. A vector clock tracks what each queue already waits for, so
 * that a token is added only if no chain of tokens implies the dependence. Producers of the tokens
 * between two queues are therefore in the order of their consumers: the k-th pop matches the k-th
 * push. All tokens point forward, so the stream cannot deadlock. GEMM also waits for pending work
 * of the ALU in its banks. */
#include <stdlib.h>
#include <string.h>

#include "hazards.h"

typedef struct {
  tw_hazards hazards;
  uint8_t *words;
  int64_t latest[TW_ACCEL_QUEUES]; /* by queue, the last task that the current one depends on */
  int64_t banks;                   /* banks of acc accessed by the current task */
  int32_t alu[TW_ACCEL_BANKS];     /* by bank, the last ALU task that accesses it */
  int64_t tokens[TW_ACCEL_QUEUES][TW_ACCEL_QUEUES]; /* from, to */
  int32_t *pops; /* by queues and token: position of the task that pops it; rings of `token_max` */
} maker;

static void put(const maker *m, int64_t number, const tw_accel_bit_field *field, uint64_t value) {
  uint8_t *word = m->words + number * m->hazards.machine->config.word_bytes;
  for (int32_t i = 0; i < field->bits; ++i) {
    int32_t bit = field->at + i;
    word[bit / 8] = (uint8_t)((word[bit / 8] & ~(1 << bit % 8)) | (value >> i & 1) << bit % 8);
  }
}

/* ---- accesses ----------------------------------------------------------------------------- */

static void wait_for(maker *m, int32_t other) {
  if (other == TW_NO_TASK || other == m->hazards.number) return;
  int64_t *latest = &m->latest[m->hazards.queue[other]];
  *latest = tw_max64(*latest, other);
}

static void read_cell(maker *m, tw_shadow *b, int64_t cell) {
  int32_t number = m->hazards.number;
  int32_t *reader = &b->readers[m->hazards.queue[number] * b->size + cell];
  if (*reader == number) return;
  wait_for(m, b->writer[cell]);
  *reader = number;
}

static void write_cell(maker *m, tw_shadow *b, int64_t cell) {
  if (b->writer[cell] == m->hazards.number) return;
  wait_for(m, b->writer[cell]);
  for (int32_t queue = 0; queue < TW_ACCEL_QUEUES; ++queue) {
    wait_for(m, b->readers[queue * b->size + cell]);
    b->readers[queue * b->size + cell] = TW_NO_TASK;
  }
  b->writer[cell] = m->hazards.number;
}

static void touch(maker *m, tw_shadow *b, int64_t cell, bool is_write) {
  if (b == &m->hazards.memory[TW_ACC]) m->banks |= 1 << m->hazards.machine->bank[cell];
  if (is_write) {
    write_cell(m, b, cell);
  } else {
    read_cell(m, b, cell);
  }
}

static void visit_transfer(maker *m, const tw_task_word *t) {
  const tw_accel_config *c = &m->hazards.machine->config;
  bool is_store = t->op == TW_ACCEL_STORE;
  tw_shadow *memory = &m->hazards.memory[c->format_memory[t->op][t->f[F_FMT]]];
  tw_shadow *b = &m->hazards.buffer[t->f[F_BASE]];
  int64_t entries = tw_task_entries(t), width = tw_format_bytes(c, t);
  for (int64_t i = 0; i < entries; ++i) touch(m, memory, t->f[F_SRAM] + i, !is_store);
  if (!b->size) return; /* memory that no task writes needs no shadow */
  for (int64_t z = 0; z < t->f[F_Z]; ++z) {
    for (int64_t y = 0; y < t->f[F_Y]; ++y) {
      for (int64_t x = 0; x < t->f[F_X]; ++x) {
        int64_t entry = z * t->f[F_ZSTRIDE] + y * t->f[F_YSTRIDE] + x * t->f[F_XSTRIDE];
        int64_t first = (t->f[F_OFFSET] + entry * width) / b->unit;
        for (int64_t i = 0; i < width / b->unit; ++i) touch(m, b, first + i, is_store);
      }
    }
  }
}

static int32_t visit_step(void *context, const tw_task_word *t, const tw_step *s) {
  maker *m = context;
  tw_shadow *memory = m->hazards.memory;
  bool is_gemm = t->op == TW_ACCEL_GEMM, to_out = !is_gemm && t->f[F_FN] == TW_REQUANT;
  touch(m, &memory[is_gemm ? TW_INP : TW_ACC], s->src, false);
  int64_t more = is_gemm ? 1 : tw_requantizes(t) ? 3 : !t->f[F_IMM];
  for (int64_t i = 0; i < more; ++i) {
    touch(m, &memory[is_gemm ? TW_WGT : TW_ACC], s->aux + i, false);
  }
  touch(m, &memory[to_out ? TW_OUT : TW_ACC], s->dst, true);
  return TW_OK;
}

/* ---- tokens ------------------------------------------------------------------------------- */

/* Add a token from an earlier task to the current one. The earlier one must not begin before a pop
 * makes room for the token in the counter. */
static int32_t add_token(maker *m, int64_t earlier, int32_t to) {
  tw_hazards *b = &m->hazards;
  int32_t from = b->queue[earlier], most = b->machine->config.token_max;
  int64_t number = m->tokens[from][to]++;
  int32_t *popped = &m->pops[(from * TW_ACCEL_QUEUES + to) * most + number % most];
  if (number >= most && b->clock[earlier][to] <= *popped) {
    return tw_job_error(b->job, TW_ACCEL_TOKENS, earlier,
                        "%lld: the tasks of one queue are %d tokens ahead of another that waits "
                        "for them, more than a counter holds",
                        (long long)earlier, most + 1);
  }
  *popped = b->position[b->number];
  tw_hazards_follow(b, earlier);
  return TW_OK;
}

/* Add tokens from all tasks that the current one depends on, the latest first: they may imply
 * others. */
static int32_t order(maker *m, const tw_task_word *t) {
  tw_hazards *b = &m->hazards;
  const tw_accel_bit_field(*fields)[F_COUNT] = b->machine->config.fields;
  uint64_t pops = 0;
  for (;;) {
    int64_t other = TW_NO_TASK;
    for (int32_t queue = 0; queue < TW_ACCEL_QUEUES; ++queue) {
      if (queue != t->queue) other = tw_max64(other, m->latest[queue]);
    }
    if (other == TW_NO_TASK) break;
    int32_t queue = b->queue[other];
    m->latest[queue] = TW_NO_TASK;
    if (tw_hazards_is_ordered(b, (int32_t)other)) continue;
    int32_t code = add_token(m, other, t->queue);
    if (code != TW_OK) return code;
    pops |= UINT64_C(1) << queue;
    tw_task_word earlier;
    tw_task_decode(&b->machine->config, b->job, other, &earlier);
    put(m, other, &fields[earlier.op][F_PUSH], (uint64_t)earlier.f[F_PUSH] | 1u << t->queue);
  }
  put(m, b->number, &fields[t->op][F_POP], pops);
  return TW_OK;
}

/* Between two tasks of the ALU, GEMM would occupy a bank that both need, for a long time. */
static void wait_for_banks(maker *m, int32_t op) {
  for (int32_t bank = 0; bank < TW_ACCEL_BANKS; ++bank) {
    if (!(m->banks >> bank & 1)) continue;
    if (op == TW_ACCEL_GEMM) wait_for(m, m->alu[bank]);
    if (op == TW_ACCEL_ALU) m->alu[bank] = m->hazards.number;
  }
}

static int32_t visit(maker *m, int64_t number) {
  tw_hazards *b = &m->hazards;
  const tw_accel_config *c = &b->machine->config;
  tw_task_word t;
  int32_t code = tw_task_decode(c, b->job, number, &t);
  if (code == TW_OK) code = tw_task_execute(b->machine, b->job, number, &t, true);
  if (code != TW_OK) return code;
  tw_hazards_begin(b, number, t.queue);
  for (int32_t queue = 0; queue < TW_ACCEL_QUEUES; ++queue) {
    m->latest[queue] = t.op == TW_ACCEL_FINISH ? b->last[queue] : TW_NO_TASK;
  }
  m->banks = 0;
  if (t.op == TW_ACCEL_GEMM || t.op == TW_ACCEL_ALU) {
    for (int64_t i = t.f[F_UBEGIN]; i < t.f[F_UEND]; ++i) read_cell(m, &b->memory[TW_UOP], i);
    code = tw_task_walk(b->machine, b->job, number, &t, visit_step, m);
  } else if (t.op != TW_ACCEL_FINISH) {
    visit_transfer(m, &t);
  }
  wait_for_banks(m, t.op);
  if (code == TW_OK) code = order(m, &t);
  put(m, number, &c->fields[t.op][F_BANKS], (uint64_t)m->banks);
  return code;
}

/* ---- streams ------------------------------------------------------------------------------ */

/* Repeat tasks without tokens, then add the finish. */
static void repeat(maker *m, const uint8_t *words, int64_t tasks, int64_t rounds,
                   const tw_accel_region *regions) {
  const tw_accel_config *c = &m->hazards.machine->config;
  tw_accel_job *job = m->hazards.job;
  int64_t size = c->word_bytes, body = tasks - 1;
  for (int64_t round = 0; round < rounds; ++round) {
    memcpy(m->words + round * body * size, words, (size_t)(body * size));
  }
  memcpy(m->words + rounds * body * size, words + body * size, (size_t)size);
  tw_task_word t;
  for (int64_t at = 0; at < job->tasks && tw_task_decode(c, job, at, &t) == TW_OK; ++at) {
    const tw_accel_bit_field *fields = c->fields[t.op];
    put(m, at, &fields[F_POP], 0);
    put(m, at, &fields[F_PUSH], 0);
    put(m, at, &fields[F_BANKS], ~UINT64_C(0));
    if (!fields[F_BASE].bits || !regions[t.f[F_BASE]].per_round) continue;
    int64_t offset = t.f[F_OFFSET] + at / body * regions[t.f[F_BASE]].bytes;
    if (offset >> fields[F_OFFSET].bits) {
      tw_job_error(job, TW_ACCEL_ADDRESS, at, "%lld: byte %lld of a buffer is out of reach",
                   (long long)at, (long long)offset);
    }
    put(m, at, &fields[F_OFFSET], (uint64_t)offset);
  }
}

int32_t tw_accel_make(const tw_accel_config *config, const uint8_t *words, int64_t tasks,
                      int64_t rounds, const tw_accel_region *regions, int32_t count,
                      uint8_t *made) {
  tw_accel_job job = {.words = made,
                      .tasks = (tasks - 1) * rounds + 1,
                      .buffers = count,
                      .timeout_cycles = INT64_MAX,
                      .task = -1};
  uint8_t *written[TW_ACCEL_BASES] = {0};
  bool ok = true;
  for (int32_t i = 0; i < count; ++i) {
    const tw_accel_region *r = &regions[i];
    job.buffer[i] = (tw_accel_buffer){.bytes = r->bytes * (r->per_round ? rounds : 1),
                                      .is_writable = r->is_writable};
    if (!r->code) continue;
    written[i] = malloc((size_t)r->bytes + 1);
    ok = ok && written[i];
    if (written[i]) memset(written[i], 1, (size_t)r->bytes);
    job.buffer[i].device = (uint8_t *)r->code; /* never written */
    job.buffer[i].written = written[i];
  }
  maker m = {.words = made};
  for (int32_t bank = 0; bank < TW_ACCEL_BANKS; ++bank) m.alu[bank] = TW_NO_TASK;
  tw_machine *machine = tw_machine_open(config);
  ok = ok && machine;
  m.pops = malloc(sizeof *m.pops * TW_ACCEL_QUEUES * TW_ACCEL_QUEUES * (size_t)config->token_max);
  ok = ok && m.pops;
  m.hazards.machine = machine;
  m.hazards.job = &job;
  if (ok) repeat(&m, words, tasks, rounds, regions);
  ok = ok && (job.code != TW_OK || tw_hazards_init(&m.hazards, machine, &job));
  if (!ok) tw_job_error(&job, TW_ERROR_NO_MEMORY, -1, "not enough memory for a stream");
  for (int64_t at = 0; at < job.tasks && job.code == TW_OK; ++at) visit(&m, at);
  tw_hazards_free(&m.hazards);
  free(m.pops);
  if (machine) tw_machine_close(machine);
  for (int32_t i = 0; i < count; ++i) free(written[i]);
  return job.code == TW_OK ? TW_OK : tw_error(job.code, job.message);
}
