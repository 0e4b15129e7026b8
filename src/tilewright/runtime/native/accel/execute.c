/* What tasks do: the same arithmetic as accel/behaviour.py, step by step. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

bool tw_machine_init(tw_machine *m, const tw_accel_config *config) {
  memset(m, 0, sizeof *m);
  m->config = *config;
  const tw_accel_config *c = &m->config;
  size_t lanes = (size_t)(c->batch * c->block_out);
  m->inp = calloc((size_t)c->depth[TW_INP], (size_t)(c->batch * c->block_in));
  m->wgt = calloc((size_t)c->depth[TW_WGT], (size_t)(c->block_out * c->block_in));
  m->acc = calloc((size_t)c->depth[TW_ACC], lanes * sizeof(int32_t));
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

/* An entry from DRAM into its scratchpad. */
static void load_entry(tw_machine *m, int32_t memory, int32_t bits, int64_t place,
                       const uint8_t *from, int64_t width) {
  const tw_accel_config *c = &m->config;
  int64_t lanes = (int64_t)c->batch * c->block_out;
  m->written[memory][place] = 1;
  if (memory == TW_INP) {
    memcpy(m->inp + place * width, from, (size_t)width);
  } else if (memory == TW_UOP) {
    memcpy(&m->uop[place], from, sizeof(uint64_t));
  } else if (memory == TW_WGT && bits == 4) {
    for (int64_t i = 0; i < width; ++i) {
      m->wgt[2 * (place * width + i)] = (int8_t)(((from[i] & 15) ^ 8) - 8);
      m->wgt[2 * (place * width + i) + 1] = (int8_t)(((from[i] >> 4) ^ 8) - 8);
    }
    tw_gemm_arrange(m->wgt + 2 * place * width, c);
  } else if (memory == TW_WGT) {
    memcpy(m->wgt + place * width, from, (size_t)width);
    tw_gemm_arrange(m->wgt + place * width, c);
  } else if (bits == 8) {
    for (int64_t i = 0; i < lanes; ++i) m->acc[place * lanes + i] = (int8_t)from[i];
  } else {
    memcpy(m->acc + place * lanes, from, (size_t)width);
  }
}

static void pad_entry(tw_machine *m, int32_t memory, int64_t place, int64_t value) {
  const tw_accel_config *c = &m->config;
  int64_t lanes = (int64_t)c->batch * c->block_out, in = (int64_t)c->batch * c->block_in;
  int64_t wide = (int64_t)c->block_out * c->block_in;
  m->written[memory][place] = 1;
  switch (memory) {
    case TW_INP: memset(m->inp + place * in, (uint8_t)value, (size_t)in); break;
    case TW_WGT: memset(m->wgt + place * wide, (uint8_t)value, (size_t)wide); break;
    case TW_UOP: m->uop[place] = 0; break;
    default:
      for (int64_t i = 0; i < lanes; ++i) m->acc[place * lanes + i] = (int32_t)value;
  }
}

/* An entry of bytes becomes the last byte of what it shares with those before it in its row. */
static void join_neighbours(tw_machine *m, int64_t place, bool begins_row) {
  const tw_accel_config *c = &m->config;
  int64_t lanes = (int64_t)c->batch * c->block_out;
  uint32_t *own = (uint32_t *)m->acc + place * lanes;
  for (int64_t i = 0; i < lanes; ++i) {
    uint32_t before = begins_row ? 0 : own[i - lanes] >> 8;
    own[i] = before | (own[i] & 255) << 8 * (c->taps - 1);
  }
}

static int32_t run_transfer(tw_machine *m, tw_accel_job *job, int64_t number,
                            const tw_task_word *t) {
  const tw_accel_config *c = &m->config;
  int32_t memory = c->format_memory[t->op][t->f[F_FMT]], bits = c->format_bits[t->op][t->f[F_FMT]];
  bool has_neighbours = c->format_has_neighbours[t->op][t->f[F_FMT]];
  int64_t width = tw_format_bytes(c, t), place = t->f[F_SRAM];
  int32_t code = check_transfer(m, job, number, t, width);
  if (code != TW_OK) return code;
  if (t->op == TW_ACCEL_STORE && memory == TW_ACC) {
    for (int64_t i = 0; i < tw_task_entries(t); ++i) {
      if (!(t->f[F_BANKS] >> m->bank[place + i] & 1)) {
        return tw_job_error(job, TW_ACCEL_ADDRESS, number,
                            "%lld: store touches a bank that it does not name", (long long)number);
      }
    }
  }
  tw_accel_buffer *buffer = &job->buffer[t->f[F_BASE]];
  int64_t x = t->f[F_X], y = t->f[F_Y], x0 = t->f[F_X0], y0 = t->f[F_Y0];
  int64_t columns = x0 + x + t->f[F_X1], rows = y0 + y + t->f[F_Y1];
  const uint8_t *source = memory == TW_OUT ? (const uint8_t *)m->out : (const uint8_t *)m->acc;
  for (int64_t at_z = 0; at_z < t->f[F_Z]; ++at_z) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column, ++place) {
        bool is_pad = row < y0 || row >= y0 + y || column < x0 || column >= x0 + x;
        if (is_pad) {
          pad_entry(m, memory, place, t->f[F_VALUE]);
          if (has_neighbours) join_neighbours(m, place, column == 0);
          continue;
        }
        int64_t entry =
            at_z * t->f[F_ZSTRIDE] + (row - y0) * t->f[F_YSTRIDE] + (column - x0) * t->f[F_XSTRIDE];
        int64_t at = t->f[F_OFFSET] + entry * width;
        if (t->op == TW_ACCEL_STORE) {
          if (!m->written[memory][place]) {
            return tw_job_error(job, TW_ACCEL_UNWRITTEN, number,
                                "%lld: store reads %s[%lld], which nothing has written",
                                (long long)number, memories[memory], (long long)place);
          }
          memcpy(buffer->device + at, source + place * width, (size_t)width);
          memset(buffer->written + at, 1, (size_t)width);
          continue;
        }
        if (memchr(buffer->written + at, 0, (size_t)width)) {
          return tw_job_error(job, TW_ACCEL_UNWRITTEN, number,
                              "%lld: a load reads byte %lld of a buffer or behind, which nothing "
                              "has written",
                              (long long)number, (long long)at);
        }
        load_entry(m, memory, bits, place, buffer->device + at, width);
        if (has_neighbours) join_neighbours(m, place, column == 0);
      }
    }
  }
  return TW_OK;
}

/* ---- steps -------------------------------------------------------------------------------- */

static int64_t uop_field(const tw_machine *m, int64_t at, int32_t which) {
  const tw_accel_place *place = &m->config.uop[which];
  return (int64_t)(m->uop[at] >> place->at & ((UINT64_C(1) << place->bits) - 1));
}

/* A walk over the steps of a task. */
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

/* The next step; the innermost loop is the microcode. */
static inline void walk_next(walk *w) {
  if (++w->at < w->count) return;
  w->at = 0;
  for (int32_t loop = TW_ACCEL_LOOPS - 1; loop >= 0; --loop) {
    const int64_t *f = &w->task->f[F_N_0 + 4 * loop];
    if (++w->index[loop] < f[0]) {
      for (int32_t k = 0; k < 3; ++k) w->sum[k] += f[1 + k];
      return;
    }
    for (int32_t k = 0; k < 3; ++k) w->sum[k] -= (w->index[loop] - 1) * f[1 + k];
    w->index[loop] = 0;
  }
}

static inline bool walk_is_first(const walk *w) {
  int64_t over = w->task->f[F_OVER];
  for (int32_t loop = 0; loop < TW_ACCEL_LOOPS; ++loop) {
    if (over >> loop & 1 && w->index[loop]) return false;
  }
  return !(over >> TW_ACCEL_LOOPS & 1) || w->at == 0;
}

/* Whether the addresses of an operand are inside, for all steps: they only grow. */
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

/* Cycles that one step takes at most: see tw_task_cycles. */
static int64_t most_step_cycles(const tw_machine *m, const tw_task_word *t) {
  return t->op == TW_ACCEL_GEMM ? 1 : tw_requantizes(t) ? 1 + m->config.requant_reload : 3;
}

static int32_t check_steps(const tw_machine *m, tw_accel_job *job, int64_t number,
                           const tw_task_word *t, bool timing_only) {
  long long at = (long long)number, begin = t->f[F_UBEGIN], end = t->f[F_UEND];
  if (begin > end || end > m->config.depth[TW_UOP]) {
    return tw_job_error(job, TW_ACCEL_ADDRESS, number, "%lld: micro-operations %lld to %lld of %d",
                        at, begin, end, m->config.depth[TW_UOP]);
  }
  int64_t limit = tw_min64(m->config.max_steps, job->timeout_cycles);
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
  if (code != TW_OK || tw_task_steps(t) * most_step_cycles(m, t) <= limit) return code;
  if (tw_task_cycles(m, t) > limit) {
    code = tw_job_error(job, TW_ACCEL_TIMEOUT, number,
                        "%lld: a task of %lld cycles, and %lld are allowed", at,
                        (long long)tw_task_cycles(m, t), (long long)limit);
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

static int32_t run_gemm(tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                        walk *w) {
  const tw_accel_config *c = &m->config;
  int64_t lanes = (int64_t)c->batch * c->block_out, in = (int64_t)c->batch * c->block_in;
  int64_t wide = (int64_t)c->block_out * c->block_in;
  tw_gemm_step multiply = tw_gemm_step_of(c);
  const uint8_t *has_inp = m->written[TW_INP], *has_wgt = m->written[TW_WGT];
  uint8_t *has_acc = m->written[TW_ACC];
  int64_t banks = t->f[F_BANKS], uops = w->count;
  bool first_uop_alone = t->f[F_OVER] >> TW_ACCEL_LOOPS & 1;
  for (int64_t left = tw_task_steps(t); left > 0; left -= uops) {
    bool is_first = t->f[F_INIT] && walk_is_first(w);
    const int64_t *code = w->code;
    for (int64_t u = 0; u < uops; ++u, code += 3) {
      int64_t dst = w->sum[0] + code[0], src = w->sum[1] + code[1], aux = w->sum[2] + code[2];
      if (!has_inp[src]) return unwritten(job, number, TW_INP, src);
      if (!has_wgt[aux]) return unwritten(job, number, TW_WGT, aux);
      if (!(banks >> m->bank[dst] & 1)) return unnamed(job, number, dst);
      int32_t *acc = m->acc + dst * lanes;
      if (is_first) {
        memset(acc, 0, (size_t)lanes * sizeof *acc);
        has_acc[dst] = 1;
        is_first = !first_uop_alone;
      } else if (!has_acc[dst]) {
        return unwritten(job, number, TW_ACC, dst);
      }
      multiply(acc, m->inp + src * in, m->wgt + aux * wide, c);
    }
    w->at = uops - 1;
    walk_next(w);
  }
  return TW_OK;
}

static void requantize(const tw_machine *m, const tw_task_word *t, const tw_step *s) {
  int64_t lanes = (int64_t)m->config.batch * m->config.block_out;
  const int32_t *source = m->acc + s->src * lanes, *bias = m->acc + s->aux * lanes;
  const int32_t *multiplier = bias + lanes, *shifts = bias + 2 * lanes;
  for (int64_t i = 0; i < lanes; ++i) {
    int32_t total = (int32_t)((uint32_t)source[i] + (uint32_t)bias[i]);
    int32_t shift = shifts[i] & 63;
    uint64_t half = shift ? UINT64_C(1) << (shift - 1) : 0;
    uint64_t scaled = (uint64_t)((int64_t)total * multiplier[i]) + half;
    int64_t value = ((int64_t)scaled >> shift) + t->f[F_ZERO];
    value = value < t->f[F_LOW] ? t->f[F_LOW] : value;
    value = value > t->f[F_HIGH] ? t->f[F_HIGH] : value;
    if (t->f[F_FN] == TW_REQUANT) {
      m->out[s->dst * lanes + i] = (int8_t)value;
    } else {
      m->acc[s->dst * lanes + i] = (int8_t)value;
    }
  }
}

/* The sum of products of so many bytes. */
static int32_t products(int32_t taps, int32_t a, int32_t b) {
  int32_t sum = (int8_t)a * (int8_t)b;
  for (int32_t i = 1; i < taps; ++i) sum += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
  return sum;
}

static int32_t alu_lane(int32_t fn, int32_t taps, int32_t old, int32_t a, int32_t b) {
  switch (fn) {
    case TW_ADD: return (int32_t)((uint32_t)a + (uint32_t)b);
    case TW_MAX: return a > b ? a : b;
    case TW_MIN: return a < b ? a : b;
    case TW_MAC: return (int32_t)((uint32_t)old + (uint32_t)products(taps, a, b));
    case TW_MUL: return products(taps, a, b);
    default:
      if (b >= 0) return a >> (b > 31 ? 31 : b);
      return (int32_t)((uint32_t)a << (b < -31 ? 31 : -b));
  }
}

static int32_t run_alu(tw_machine *m, tw_accel_job *job, int64_t number, const tw_task_word *t,
                       walk *w) {
  int64_t lanes = (int64_t)m->config.batch * m->config.block_out;
  int32_t fn = (int32_t)t->f[F_FN], value = (int32_t)t->f[F_VALUE];
  const uint8_t *written = m->written[TW_ACC];
  tw_step s;
  for (int64_t left = tw_task_steps(t); left > 0; --left, walk_next(w)) {
    walk_step(w, &s);
    if (!written[s.src]) return unwritten(job, number, TW_ACC, s.src);
    if (!(t->f[F_BANKS] >> m->bank[s.src] & 1)) return unnamed(job, number, s.src);
    int32_t operands = tw_requantizes(t) ? 3 : !t->f[F_IMM];
    for (int64_t i = s.aux; i < s.aux + operands; ++i) {
      if (!written[i]) return unwritten(job, number, TW_ACC, i);
      if (!(t->f[F_BANKS] >> m->bank[i] & 1)) return unnamed(job, number, i);
    }
    if (fn == TW_REQUANT) {
      requantize(m, t, &s);
      m->written[TW_OUT][s.dst] = 1;
      continue;
    }
    if (!(t->f[F_BANKS] >> m->bank[s.dst] & 1)) return unnamed(job, number, s.dst);
    if (fn == TW_RESCALE) {
      requantize(m, t, &s);
      m->written[TW_ACC][s.dst] = 1;
      continue;
    }
    if (fn == TW_MAC && !written[s.dst]) return unwritten(job, number, TW_ACC, s.dst);
    int32_t *to = m->acc + s.dst * lanes;
    const int32_t *a = m->acc + s.src * lanes, *b = m->acc + s.aux * lanes;
    for (int64_t i = 0; i < lanes; ++i) {
      to[i] = alu_lane(fn, m->config.taps, to[i], a[i], operands ? b[i] : value);
    }
    m->written[TW_ACC][s.dst] = 1;
  }
  return TW_OK;
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
