/* Execution of tasks: transfers, and steps, for which compiled kernels are called
 * (accel/kernels.py). This file enumerates the steps, and rejects invalid accesses. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

static DLTensor tensor_of(void *data, uint8_t bits, int32_t ndim, int64_t *shape) {
  return (DLTensor){data, {kDLCPU, 0}, ndim, {kDLInt, bits, 1}, shape, NULL, 0};
}

static void describe(tw_machine *m, int32_t memory, void *data, uint8_t bits, int32_t rows,
                     int32_t columns, int32_t more) {
  int64_t *shape = m->shape[memory];
  shape[0] = m->config.depth[memory] + more, shape[1] = rows, shape[2] = columns;
  m->tensor[memory] = tensor_of(data, bits, 3, shape);
}

bool tw_machine_init(tw_machine *m, const tw_accel_config *config) {
  memset(m, 0, sizeof *m);
  m->config = *config;
  const tw_accel_config *c = &m->config;
  size_t lanes = (size_t)(c->batch * c->block_out);
  m->inp = calloc((size_t)c->depth[TW_INP], (size_t)(c->batch * c->block_in));
  m->wgt = calloc((size_t)c->depth[TW_WGT], (size_t)(c->block_out * c->block_in));
  m->acc = calloc((size_t)c->depth[TW_ACC] + 1, lanes * sizeof(int32_t));
  m->uop = calloc((size_t)c->depth[TW_UOP], sizeof(uint64_t));
  m->out = calloc((size_t)c->depth[TW_OUT], lanes);
  m->bank = calloc((size_t)c->depth[TW_ACC], 1);
  bool ok = m->inp && m->wgt && m->acc && m->uop && m->out && m->bank;
  for (int32_t i = 0; i < TW_ACCEL_MEMORIES; ++i) {
    m->written[i] = calloc((size_t)c->depth[i], 1);
    ok = ok && m->written[i];
  }
  for (int64_t i = 0; ok && i < c->depth[TW_ACC]; ++i) {
    m->bank[i] = (uint8_t)(i * TW_ACCEL_BANKS / c->depth[TW_ACC]);
  }
  describe(m, TW_INP, m->inp, 8, c->batch, c->block_in, 0);
  describe(m, TW_WGT, m->wgt, 8, c->block_out, c->block_in, 0);
  describe(m, TW_ACC, m->acc, 32, c->batch, c->block_out, 1);
  describe(m, TW_OUT, m->out, 8, c->batch, c->block_out, 0);
  if (!ok) tw_machine_free(m);
  return ok;
}

void tw_machine_free(tw_machine *m) {
  free(m->inp), free(m->wgt), free(m->acc), free(m->uop), free(m->out), free(m->bank);
  for (int32_t i = 0; i < TW_ACCEL_MEMORIES; ++i) free(m->written[i]);
  memset(m, 0, sizeof *m);
}

void *tw_machine_open(const tw_accel_config *config) {
  tw_machine *machine = malloc(sizeof *machine);
  if (machine && !tw_machine_init(machine, config)) {
    free(machine);
    machine = NULL;
  }
  return machine;
}

void tw_machine_close(void *machine) {
  tw_machine_free(machine);
  free(machine);
}

void tw_machine_clear(tw_machine *m) {
  for (int32_t i = 0; i < TW_ACCEL_MEMORIES; ++i) {
    memset(m->written[i], 0, (size_t)m->config.depth[i]);
  }
}

/* ---- transfers ---------------------------------------------------------------------------- */

static const char *const memories[] = {"inp", "wgt", "acc", "uop", "out"};

static int32_t check_transfer(const tw_machine *m, tw_accel_job *job, int64_t number,
                              const tw_task_word *t, int64_t width) {
  const tw_accel_config *c = &m->config;
  int32_t memory = c->format_memory[t->op][t->f[F_FMT]];
  long long at = (long long)number;
  int64_t align = tw_min64(width, c->bus_bytes), entries = tw_task_entries(t);
  if (t->f[F_OFFSET] % align) {
    return tw_job_error(job, TW_ACCEL_ADDRESS, number,
                        "%lld: a transfer begins at byte %lld, no multiple of %lld", at,
                        (long long)t->f[F_OFFSET], (long long)align);
  }
  if (entries && t->f[F_SRAM] + entries > c->depth[memory]) {
    return tw_job_error(
        job, TW_ACCEL_ADDRESS, number, "%lld: a transfer touches entry %lld of %s, which has %d",
        at, (long long)(t->f[F_SRAM] + entries - 1), memories[memory], c->depth[memory]);
  }
  if (!t->f[F_X] || !t->f[F_Y] || !t->f[F_Z]) return TW_OK;
  int64_t last = (t->f[F_Z] - 1) * t->f[F_ZSTRIDE] + (t->f[F_Y] - 1) * t->f[F_YSTRIDE] +
                 (t->f[F_X] - 1) * t->f[F_XSTRIDE];
  int64_t end = t->f[F_OFFSET] + (last + 1) * width, size = job->buffer[t->f[F_BASE]].bytes;
  if (end > size) {
    return tw_job_error(job, TW_ACCEL_ADDRESS, number,
                        "%lld: a transfer touches byte %lld of a buffer, which has %lld", at,
                        (long long)(end - 1), (long long)size);
  }
  return TW_OK;
}

/* Load entries that are contiguous in DRAM to their scratchpad. */
static void load_entries(tw_machine *m, int32_t memory, int32_t bits, int64_t sram, int64_t count,
                         const uint8_t *from, int64_t width) {
  const tw_accel_config *c = &m->config;
  int64_t lanes = (int64_t)c->batch * c->block_out, wide = (int64_t)c->block_out * c->block_in;
  size_t bytes = (size_t)(count * width);
  memset(m->written[memory] + sram, 1, (size_t)count);
  if (memory == TW_INP) {
    memcpy(m->inp + sram * width, from, bytes);
  } else if (memory == TW_UOP) {
    memcpy(&m->uop[sram], from, bytes);
  } else if (memory == TW_WGT) {
    int8_t *to = m->wgt + sram * wide;
    if (bits == 8) memcpy(to, from, bytes);
    for (int64_t i = 0; bits == 4 && i < count * width; ++i) {
      to[2 * i] = (int8_t)(((from[i] & 15) ^ 8) - 8);
      to[2 * i + 1] = (int8_t)(((from[i] >> 4) ^ 8) - 8);
    }
  } else if (bits == 8) {
    for (int64_t i = 0; i < count * lanes; ++i) m->acc[sram * lanes + i] = (int8_t)from[i];
  } else {
    memcpy(m->acc + sram * lanes, from, bytes);
  }
}

static void pad_entries(tw_machine *m, int32_t memory, int64_t sram, int64_t count, int64_t value) {
  const tw_accel_config *c = &m->config;
  int64_t lanes = (int64_t)c->batch * c->block_out, in = (int64_t)c->batch * c->block_in;
  int64_t wide = (int64_t)c->block_out * c->block_in;
  memset(m->written[memory] + sram, 1, (size_t)count);
  switch (memory) {
    case TW_INP: memset(m->inp + sram * in, (uint8_t)value, (size_t)(count * in)); break;
    case TW_WGT: memset(m->wgt + sram * wide, (uint8_t)value, (size_t)(count * wide)); break;
    case TW_UOP: memset(&m->uop[sram], 0, (size_t)count * sizeof *m->uop); break;
    default:
      for (int64_t i = 0; i < count * lanes; ++i) m->acc[sram * lanes + i] = (int32_t)value;
  }
}

/* Entries of bytes become the last bytes of numbers that include preceding entries of the row. */
static void join_neighbours(tw_machine *m, int64_t sram, int64_t columns) {
  const tw_accel_config *c = &m->config;
  int64_t lanes = (int64_t)c->batch * c->block_out;
  uint32_t *row = (uint32_t *)m->acc + sram * lanes;
  for (int64_t i = 0; i < columns * lanes; ++i) {
    uint32_t before = i < lanes ? 0 : row[i - lanes] >> 8;
    row[i] = before | (row[i] & 255) << 8 * (c->taps - 1);
  }
}

/* Transfer entries that are contiguous in DRAM, in either direction. */
static int32_t run_row(tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                       int64_t sram, int64_t count, int64_t entry) {
  const tw_accel_config *c = &m->config;
  int32_t memory = c->format_memory[t->op][t->f[F_FMT]], bits = c->format_bits[t->op][t->f[F_FMT]];
  int64_t width = tw_format_bytes(c, t), at = t->f[F_OFFSET] + entry * width;
  tw_accel_buffer *buffer = &job->buffer[t->f[F_BASE]];
  size_t bytes = (size_t)(count * width);
  if (t->op == TW_ACCEL_STORE) {
    const uint8_t *source = memory == TW_OUT ? (const uint8_t *)m->out : (const uint8_t *)m->acc;
    const uint8_t *missing = memchr(m->written[memory] + sram, 0, (size_t)count);
    if (missing) {
      return tw_job_error(
          job, TW_ACCEL_UNWRITTEN, number, "%lld: store reads %s[%lld], which nothing has written",
          (long long)number, memories[memory], (long long)(missing - m->written[memory]));
    }
    memcpy(buffer->device + at, source + sram * width, bytes);
    memset(buffer->written + at, 1, bytes);
    return TW_OK;
  }
  const uint8_t *missing = memchr(buffer->written + at, 0, bytes);
  if (missing) {
    return tw_job_error(job, TW_ACCEL_UNWRITTEN, number,
                        "%lld: a load reads byte %lld of a buffer, which nothing has written",
                        (long long)number, (long long)(missing - buffer->written));
  }
  load_entries(m, memory, bits, sram, count, buffer->device + at, width);
  return TW_OK;
}

static int32_t run_transfer(tw_machine *m, tw_accel_job *job, int64_t number,
                            const tw_task_word *t) {
  const tw_accel_config *c = &m->config;
  int32_t memory = c->format_memory[t->op][t->f[F_FMT]];
  int64_t sram = t->f[F_SRAM];
  int32_t code = check_transfer(m, job, number, t, tw_format_bytes(c, t));
  if (code != TW_OK) return code;
  if (t->op == TW_ACCEL_STORE && memory == TW_ACC) {
    for (int64_t i = 0; i < tw_task_entries(t); ++i) {
      if (!(t->f[F_BANKS] >> m->bank[sram + i] & 1)) {
        return tw_job_error(job, TW_ACCEL_ADDRESS, number,
                            "%lld: store touches a bank that it does not name", (long long)number);
      }
    }
  }
  int64_t x = t->f[F_X], y0 = t->f[F_Y0], x0 = t->f[F_X0], x1 = t->f[F_X1], pad = t->f[F_VALUE];
  int64_t rows = y0 + t->f[F_Y] + t->f[F_Y1], columns = x0 + x + x1;
  int64_t run = t->f[F_XSTRIDE] == 1 ? x : 1;
  for (int64_t z = 0; z < t->f[F_Z]; ++z) {
    for (int64_t row = 0; row < rows; ++row, sram += columns) {
      bool is_pad = row < y0 || row >= y0 + t->f[F_Y];
      if (is_pad) pad_entries(m, memory, sram, columns, pad);
      if (!is_pad && x0) pad_entries(m, memory, sram, x0, pad);
      if (!is_pad && x1) pad_entries(m, memory, sram + x0 + x, x1, pad);
      for (int64_t column = 0; !is_pad && column < x && code == TW_OK; column += run) {
        int64_t entry = z * t->f[F_ZSTRIDE] + (row - y0) * t->f[F_YSTRIDE];
        entry += column * t->f[F_XSTRIDE];
        code = run_row(m, job, number, t, sram + x0 + column, run, entry);
      }
      if (code != TW_OK) return code;
      if (c->format_has_neighbours[t->op][t->f[F_FMT]]) join_neighbours(m, sram, columns);
    }
  }
  return TW_OK;
}

/* ---- steps -------------------------------------------------------------------------------- */

static int64_t uop_field(const tw_machine *m, int64_t at, int32_t which) {
  const tw_accel_bit_field *bits = &m->config.uop[which];
  return (int64_t)(m->uop[at] >> bits->at & ((UINT64_C(1) << bits->bits) - 1));
}

/* Iterator over the steps of a task. */
typedef struct {
  const tw_task_word *task;
  int64_t *code; /* dst, src, aux of the micro-operations */
  int64_t count, at, index[TW_ACCEL_LOOPS], sum[3];
} walk;

enum { FEW_UOPS = 256 };

static bool walk_begin(walk *w, const tw_machine *m, const tw_task_word *t, int64_t *few) {
  w->task = t;
  w->count = t->f[F_UEND] - t->f[F_UBEGIN];
  w->code = w->count <= FEW_UOPS ? few : malloc(3 * sizeof(int64_t) * (size_t)w->count);
  if (!w->code) return false;
  for (int64_t i = 0; i < w->count; ++i) {
    for (int32_t k = 0; k < 3; ++k) w->code[3 * i + k] = uop_field(m, t->f[F_UBEGIN] + i, k);
  }
  w->at = 0;
  memset(w->index, 0, sizeof w->index);
  for (int32_t k = 0; k < 3; ++k) w->sum[k] = t->f[F_DST0 + k];
  return true;
}

static void walk_end(walk *w, const int64_t *few) {
  if (w->code != few) free(w->code);
}

static inline void walk_step(const walk *w, tw_step *step) {
  step->dst = w->sum[0] + w->code[3 * w->at];
  step->src = w->sum[1] + w->code[3 * w->at + 1];
  step->aux = w->sum[2] + w->code[3 * w->at + 2];
}

/* Advance to the next iteration of the outer loops. */
static inline void walk_outer(walk *w, int32_t loops) {
  for (int32_t loop = loops - 1; loop >= 0; --loop) {
    const int64_t *f = &w->task->f[F_N_0 + 4 * loop];
    if (++w->index[loop] < f[0]) {
      for (int32_t k = 0; k < 3; ++k) w->sum[k] += f[1 + k];
      return;
    }
    for (int32_t k = 0; k < 3; ++k) w->sum[k] -= (w->index[loop] - 1) * f[1 + k];
    w->index[loop] = 0;
  }
}

/* Advance to the next step; the innermost loop is the microcode. */
static inline void walk_next(walk *w) {
  if (++w->at < w->count) return;
  w->at = 0;
  walk_outer(w, TW_ACCEL_LOOPS);
}

static inline bool walk_is_first(const walk *w) {
  int64_t over = w->task->f[F_OVER];
  for (int32_t loop = 0; loop < TW_ACCEL_LOOPS; ++loop) {
    if (over >> loop & 1 && w->index[loop]) return false;
  }
  return !(over >> TW_ACCEL_LOOPS & 1) || w->at == 0;
}

/* Check that the addresses of an operand are in bounds, for all steps: they are monotone. */
static int32_t check_operand(const tw_machine *m, tw_accel_job *job, int64_t number,
                             const tw_task_word *t, int32_t which, int32_t memory, int32_t extra) {
  int64_t most = 0;
  for (int64_t at = t->f[F_UBEGIN]; at < t->f[F_UEND]; ++at) {
    most = tw_max64(most, uop_field(m, at, which));
  }
  most += t->f[F_DST0 + which] + extra;
  for (int32_t loop = 0; loop < TW_ACCEL_LOOPS; ++loop) {
    most += (t->f[F_N_0 + 4 * loop] - 1) * t->f[F_DST_0 + 4 * loop + which];
  }
  if (most < m->config.depth[memory]) return TW_OK;
  return tw_job_error(job, TW_ACCEL_ADDRESS, number,
                      "%lld: a step touches entry %lld of %s, which "
                      "has %d",
                      (long long)number, (long long)most, memories[memory],
                      m->config.depth[memory]);
}

/* Multiple of the time-out that a task alone certainly exceeds: simulators need not run it. */
enum { HOPELESS = 4 };

static int32_t check_steps(const tw_machine *m, tw_accel_job *job, int64_t number,
                           const tw_task_word *t, bool timing_only) {
  long long at = (long long)number, begin = t->f[F_UBEGIN], end = t->f[F_UEND];
  if (begin > end || end > m->config.depth[TW_UOP]) {
    return tw_job_error(job, TW_ACCEL_ADDRESS, number, "%lld: micro-operations %lld to %lld of %d",
                        at, begin, end, m->config.depth[TW_UOP]);
  }
  int64_t limit = (int64_t)HOPELESS * m->config.max_steps;
  if (tw_task_steps(t) > limit) {
    return tw_job_error(job, TW_ACCEL_TIMEOUT, number,
                        "%lld: a task of %lld steps, and %lld are "
                        "allowed",
                        at, (long long)tw_task_steps(t), (long long)limit);
  }
  for (long long i = begin; i < end; ++i) {
    if (!m->written[TW_UOP][i] && !timing_only) {
      return tw_job_error(job, TW_ACCEL_UNWRITTEN, number,
                          "%lld: it reads uop[%lld], which nothing has written", at, i);
    }
  }
  if (!tw_task_steps(t)) return TW_OK;
  bool is_gemm = t->op == TW_ACCEL_GEMM, requant = tw_requantizes(t);
  bool to_out = requant && t->f[F_FN] == TW_REQUANT;
  int32_t code = check_operand(m, job, number, t, 0, to_out ? TW_OUT : TW_ACC, 0);
  if (code == TW_OK) code = check_operand(m, job, number, t, 1, is_gemm ? TW_INP : TW_ACC, 0);
  if (code == TW_OK && (is_gemm || requant || !t->f[F_IMM])) {
    code = check_operand(m, job, number, t, 2, is_gemm ? TW_WGT : TW_ACC, requant ? 2 : 0);
  }
  return code;
}

static int32_t unwritten(tw_accel_job *job, int64_t number, int32_t memory, int64_t entry) {
  return tw_job_error(job, TW_ACCEL_UNWRITTEN, number,
                      "%lld: a step reads %s[%lld], which nothing has written", (long long)number,
                      memories[memory], (long long)entry);
}

static int32_t unnamed(tw_accel_job *job, int64_t number, int64_t entry) {
  return tw_job_error(job, TW_ACCEL_ADDRESS, number,
                      "%lld: a step touches acc[%lld], in a bank that the task does not name",
                      (long long)number, (long long)entry);
}

/* ---- kernels ------------------------------------------------------------------------------ */

/* Rows of a kernel call: dst, src, aux; and whether a new chain begins. */
enum { MAX_ROWS = 256 };
typedef struct {
  int64_t count, row[MAX_ROWS][3], first[MAX_ROWS];
} table;

static void add_row(table *rows, int64_t dst, int64_t src, int64_t aux, bool first) {
  int64_t *row = rows->row[rows->count];
  row[0] = dst, row[1] = src, row[2] = aux;
  rows->first[rows->count++] = first;
}

static int32_t call(tw_accel_job *job, int64_t number, tw_accel_kernel kernel,
                    const DLTensor *const *args, int32_t count) {
  int32_t code = kernel(args, count);
  return code == TW_OK ? code : tw_job_error(job, code, number, "%s", tw_last_error());
}

/* Consecutive steps that accumulate in the same entry: microcode, and inner loops that do not
 * change `dst`. */
enum { MAX_CHAIN = 256 };
typedef struct {
  int32_t outer; /* loops outside of a chain */
  int64_t count;
  int64_t offsets[2 * MAX_CHAIN]; /* src, aux of every step, relative to those of the first */
} chain;

static bool find_chain(const walk *w, chain *found) {
  const tw_task_word *t = w->task;
  int64_t over = t->f[F_OVER], count = w->count;
  if (count > MAX_CHAIN) return false;
  for (int64_t i = 1; i < count; ++i) {
    if (w->code[3 * i] != w->code[0]) return false;
  }
  int32_t outer = TW_ACCEL_LOOPS;
  while (outer > 0) {
    const int64_t *f = &t->f[F_N_0 + 4 * (outer - 1)];
    if ((f[1] && f[0] > 1) || count * f[0] > MAX_CHAIN) break;
    count *= f[0];
    --outer;
  }
  found->outer = outer;
  found->count = count;
  if (t->f[F_INIT]) { /* only the first step may overwrite */
    if (w->count > 1 && !(over >> TW_ACCEL_LOOPS & 1)) return false;
    for (int32_t loop = outer; loop < TW_ACCEL_LOOPS; ++loop) {
      if (t->f[F_N_0 + 4 * loop] > 1 && !(over >> loop & 1)) return false;
    }
  }
  walk inner = *w;
  inner.sum[1] = inner.sum[2] = 0;
  for (int64_t at = 0; at < count; ++at, walk_next(&inner)) {
    found->offsets[2 * at] = inner.sum[1] + inner.code[3 * inner.at + 1];
    found->offsets[2 * at + 1] = inner.sum[2] + inner.code[3 * inner.at + 2];
  }
  return true;
}

/* The first and last entries accessed by a task's steps. */
static void span_of(const walk *w, int32_t which, int64_t *first, int64_t *last) {
  const tw_task_word *t = w->task;
  int64_t least = INT64_MAX, most = 0;
  for (int64_t i = 0; i < w->count; ++i) {
    least = tw_min64(least, w->code[3 * i + which]);
    most = tw_max64(most, w->code[3 * i + which]);
  }
  *first = t->f[F_DST0 + which] + least;
  *last = t->f[F_DST0 + which] + most;
  for (int32_t loop = 0; loop < TW_ACCEL_LOOPS; ++loop) {
    *last += (t->f[F_N_0 + 4 * loop] - 1) * t->f[F_DST_0 + 4 * loop + which];
  }
}

/* Whether the steps of a task need no individual checks: the whole range of entries that it reads
 * is initialized, and all banks of the range that it writes are declared. */
static bool is_sound(const tw_machine *m, const walk *w) {
  int64_t first, last, banks = w->task->f[F_BANKS];
  span_of(w, 1, &first, &last);
  if (memchr(m->written[TW_INP] + first, 0, (size_t)(last - first + 1))) return false;
  span_of(w, 2, &first, &last);
  if (memchr(m->written[TW_WGT] + first, 0, (size_t)(last - first + 1))) return false;
  span_of(w, 0, &first, &last);
  for (int32_t bank = m->bank[first]; bank <= m->bank[last]; ++bank) {
    if (!(banks >> bank & 1)) return false;
  }
  return true;
}

/* Run chains of steps with offsets `steps`. */
static int32_t multiply(tw_machine *m, tw_accel_job *job, int64_t number, table *rows,
                        const chain *found) {
  int64_t chains[] = {rows->count, 3}, firsts[] = {rows->count, 1}, steps[] = {found->count, 2};
  DLTensor row = tensor_of(rows->row, 64, 2, chains), first = tensor_of(rows->first, 64, 2, firsts);
  DLTensor step = tensor_of((void *)found->offsets, 64, 2, steps);
  const DLTensor *args[] = {&m->tensor[TW_INP], &m->tensor[TW_WGT], &row, &first, &step,
                            &m->tensor[TW_ACC]};
  rows->count = 0;
  return call(job, number, job->kernels->gemm, args, 6);
}

static int32_t run_gemm(tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                        walk *w) {
  int64_t left = tw_task_steps(t);
  chain found;
  bool is_chain = left && is_sound(m, w) && find_chain(w, &found);
  if (!is_chain) found.count = 1, found.offsets[0] = found.offsets[1] = 0;
  uint8_t *has_acc = m->written[TW_ACC];
  table rows;
  rows.count = 0;
  tw_step s;
  int32_t code = TW_OK;
  for (; left > 0 && code == TW_OK; left -= found.count) {
    walk_step(w, &s);
    if (!is_chain && !m->written[TW_INP][s.src]) return unwritten(job, number, TW_INP, s.src);
    if (!is_chain && !m->written[TW_WGT][s.aux]) return unwritten(job, number, TW_WGT, s.aux);
    if (!(t->f[F_BANKS] >> m->bank[s.dst] & 1)) return unnamed(job, number, s.dst);
    bool first = t->f[F_INIT] && walk_is_first(w);
    if (!first && !has_acc[s.dst]) return unwritten(job, number, TW_ACC, s.dst);
    has_acc[s.dst] = 1;
    if (is_chain) { /* its offsets begin with those of the microcode */
      add_row(&rows, s.dst, w->sum[1], w->sum[2], first);
      walk_outer(w, found.outer);
    } else {
      add_row(&rows, s.dst, s.src, s.aux, first);
      walk_next(w);
    }
    if (rows.count == MAX_ROWS || left == found.count) {
      code = multiply(m, job, number, &rows, &found);
    }
  }
  return code;
}

/* Run steps of the ALU in sequence. */
static int32_t compute(tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                       table *rows) {
  int32_t limits[] = {(int32_t)t->f[F_ZERO], (int32_t)t->f[F_LOW], (int32_t)t->f[F_HIGH]},
          count = 0;
  int64_t shape[] = {rows->count, 3}, one[] = {1};
  DLTensor step = tensor_of(rows->row, 64, 2, shape), limit[3];
  const DLTensor *args[6];
  args[count++] = &m->tensor[TW_ACC];
  if (t->f[F_FN] == TW_REQUANT) args[count++] = &m->tensor[TW_OUT];
  for (int32_t i = 0; i < 3 && tw_requantizes(t); ++i) {
    limit[i] = tensor_of(&limits[i], 32, 1, one);
    args[count++] = &limit[i];
  }
  args[count++] = &step;
  rows->count = 0;
  return call(job, number, job->kernels->alu[t->f[F_FN]], args, count);
}

static int32_t run_alu(tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                       walk *w) {
  int64_t lanes = (int64_t)m->config.batch * m->config.block_out,
          number_at = m->config.depth[TW_ACC];
  int32_t fn = (int32_t)t->f[F_FN], operands = tw_requantizes(t) ? 3 : !t->f[F_IMM];
  uint8_t *written = m->written[TW_ACC];
  for (int64_t i = 0; i < lanes; ++i) m->acc[number_at * lanes + i] = (int32_t)t->f[F_VALUE];
  table rows;
  rows.count = 0;
  tw_step s;
  int32_t code = TW_OK;
  for (int64_t left = tw_task_steps(t); left > 0 && code == TW_OK; --left, walk_next(w)) {
    walk_step(w, &s);
    if (!written[s.src]) return unwritten(job, number, TW_ACC, s.src);
    if (!(t->f[F_BANKS] >> m->bank[s.src] & 1)) return unnamed(job, number, s.src);
    for (int64_t i = s.aux; i < s.aux + operands; ++i) {
      if (!written[i]) return unwritten(job, number, TW_ACC, i);
      if (!(t->f[F_BANKS] >> m->bank[i] & 1)) return unnamed(job, number, i);
    }
    if (fn == TW_REQUANT) {
      m->written[TW_OUT][s.dst] = 1;
    } else {
      if (!(t->f[F_BANKS] >> m->bank[s.dst] & 1)) return unnamed(job, number, s.dst);
      if (fn == TW_MAC && !written[s.dst]) return unwritten(job, number, TW_ACC, s.dst);
      written[s.dst] = 1;
    }
    add_row(&rows, s.dst, s.src, operands ? s.aux : number_at, false);
    if (rows.count == MAX_ROWS || left == 1) code = compute(m, job, number, t, &rows);
  }
  return code;
}

int32_t tw_task_walk(const tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                     tw_step_visit visit, void *context) {
  int64_t few[3 * FEW_UOPS];
  walk w;
  if (!walk_begin(&w, m, t, few)) {
    return tw_job_error(job, TW_ERROR_NO_MEMORY, number, "not enough memory for microcode");
  }
  int32_t code = TW_OK;
  tw_step s;
  for (int64_t left = tw_task_steps(t); left > 0 && code == TW_OK; --left, walk_next(&w)) {
    walk_step(&w, &s);
    s.first = t->f[F_INIT] && walk_is_first(&w);
    code = visit(context, t, &s);
  }
  walk_end(&w, few);
  return code;
}

int32_t tw_task_execute(tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                        bool timing_only) {
  if (t->op == TW_ACCEL_FINISH) return TW_OK;
  if (t->op != TW_ACCEL_GEMM && t->op != TW_ACCEL_ALU) {
    bool is_code = m->config.format_memory[t->op][t->f[F_FMT]] == TW_UOP;
    if (timing_only && !is_code) {
      return check_transfer(m, job, number, t, tw_format_bytes(&m->config, t));
    }
    return run_transfer(m, job, number, t);
  }
  int32_t code = check_steps(m, job, number, t, timing_only);
  if (code != TW_OK || timing_only) return code;
  if (!job->kernels) {
    return tw_job_error(job, TW_ACCEL_USAGE, number, "the simulator was given no kernels");
  }
  int64_t few[3 * FEW_UOPS];
  walk w;
  if (!walk_begin(&w, m, t, few)) {
    return tw_job_error(job, TW_ERROR_NO_MEMORY, number, "not enough memory for microcode");
  }
  code = t->op == TW_ACCEL_GEMM ? run_gemm(m, job, number, t, &w) : run_alu(m, job, number, t, &w);
  walk_end(&w, few);
  return code;
}

/* ---- time --------------------------------------------------------------------------------- */

int64_t tw_task_cycles(const tw_machine *m, const tw_task_word *t) {
  int64_t count = tw_task_steps(t);
  int32_t fn = (int32_t)t->f[F_FN];
  if (t->op == TW_ACCEL_GEMM || !count) return count;
  bool with_aux = !t->f[F_IMM], with_dst = fn == TW_MAC;
  bool requant = tw_requantizes(t);
  if (!requant && !with_aux && !with_dst) return count;
  int64_t few[3 * FEW_UOPS];
  walk w;
  if (!walk_begin(&w, m, t, few)) return count;
  int64_t total = 0, last = -1;
  tw_step s;
  for (int64_t left = count; left > 0; --left, walk_next(&w)) {
    walk_step(&w, &s);
    if (requant) {
      total += s.aux == last ? 1 : 1 + m->config.requant_reload;
      last = s.aux;
      continue;
    }
    int32_t uses[TW_ACCEL_BANKS] = {0}, most = 0;
    ++uses[m->bank[s.src]];
    if (with_aux) ++uses[m->bank[s.aux]];
    if (with_dst) ++uses[m->bank[s.dst]];
    for (int32_t i = 0; i < TW_ACCEL_BANKS; ++i) most = uses[i] > most ? uses[i] : most;
    total += most;
  }
  walk_end(&w, few);
  return total;
}
