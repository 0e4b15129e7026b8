/* The cycle model: accel/cycle.py, faster, with the same names and order of events in a cycle. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { LOAD, AUX, GEMM, ALU, STORE };
enum { ENDINGS = 64, NEVER_BITS = 62 };
#define NEVER (INT64_C(1) << NEVER_BITS)

typedef struct {
  int64_t time, number, pushes;
  int32_t banks;
} ending;

/* The position in a transfer's requests: rows, then bursts of a row. */
typedef struct {
  int64_t z, y, x, begin, end, pads;
  bool left;
} cursor;

typedef struct {
  int64_t pads, beats, words;
} request;

typedef struct {
  int64_t free_at;
  ending ends[ENDINGS];
  int32_t first, count;
  tw_task_word task; /* the task of the requests */
  int64_t number, begun;
  cursor at;
  request next;
  bool has_next;
  int64_t flying[64], setups[16];
  int32_t flying_count, setup_count;
  int64_t writer, place, words, per_entry;
} unit;

typedef struct {
  int64_t time;
  int32_t bank;
} steal;

typedef struct {
  uint32_t state;
  int64_t latency, left; /* left: responses until memory stops; -1: unlimited */
  bool is_random;
} delay;

typedef struct {
  tw_machine *machine;
  tw_accel_job *job;
  bool timing_only;
  unit units[TW_ACCEL_QUEUES];
  tw_task_queue queues[TW_ACCEL_QUEUES];
  int32_t tokens[TW_ACCEL_QUEUES][TW_ACCEL_QUEUES];
  steal *steals;
  int64_t steal_first, steal_end, steal_room;
  delay read_delay, write_delay;
  int64_t now, bus_free, answers[64];
  int32_t answer;
  int64_t chunk, asked, sent;
  int64_t *arrivals; /* of instructions, by number modulo capacity */
  int64_t arrival_room;
  bool happened;
} model;

static int64_t next_delay(delay *d) {
  if (d->left == 0) return NEVER / 2; /* memory does not respond any more */
  if (d->left > 0) --d->left;
  if (!d->is_random) return d->latency;
  d->state ^= d->state << 13;
  d->state ^= d->state >> 17;
  d->state ^= d->state << 5;
  return d->latency + d->state % (d->latency + 1);
}

static delay make_delay(int64_t latency, int64_t seed, int64_t more) {
  uint32_t state = (uint32_t)((uint64_t)(seed + more) * UINT64_C(0x9E3779B1) + 0x7F4A7C15u);
  return (delay){state ? state : 1, latency, seed < -1 ? -2 - seed : -1, seed >= 0};
}

/* ---- requests: accel/bursts.py ------------------------------------------------------------ */

static void start_row(const tw_accel_config *c, const tw_task_word *t, cursor *at) {
  int64_t width = tw_format_bytes(c, t);
  int64_t run = t->f[F_XSTRIDE] == 1 ? t->f[F_X] : 1;
  int64_t entry = at->z * t->f[F_ZSTRIDE] + at->y * t->f[F_YSTRIDE] + at->x * t->f[F_XSTRIDE];
  at->begin = t->f[F_OFFSET] + entry * width;
  at->end = at->begin + run * width;
}

static void start_requests(const tw_accel_config *c, const tw_task_word *t, cursor *at) {
  *at = (cursor){.left = t->f[F_X] && t->f[F_Y] && t->f[F_Z]};
  at->pads = t->f[F_Y0] * (t->f[F_X0] + t->f[F_X] + t->f[F_X1]) + t->f[F_X0];
  if (at->left) start_row(c, t, at);
}

static bool next_request(const tw_accel_config *c, const tw_task_word *t, cursor *at,
                         request *found) {
  if (!at->left) return false;
  int64_t bus = c->bus_bytes, size = c->burst_beats * bus, width = tw_format_bytes(c, t);
  int64_t stop = tw_min64(at->end, (at->begin / size + 1) * size);
  int64_t beats = (stop + bus - 1) / bus - at->begin / bus;
  *found = (request){at->pads, beats, tw_max64(beats, (stop - at->begin) / width)};
  at->begin = stop;
  at->pads = 0;
  if (stop < at->end) return true;
  int64_t columns = t->f[F_X0] + t->f[F_X] + t->f[F_X1];
  if (t->f[F_XSTRIDE] == 1 || ++at->x == t->f[F_X]) {
    at->x = 0;
    at->pads = t->f[F_X1] + t->f[F_X0];
    if (++at->y == t->f[F_Y]) {
      at->y = 0;
      at->pads += (t->f[F_Y0] + t->f[F_Y1]) * columns;
      if (++at->z == t->f[F_Z]) at->left = false;
    }
  }
  if (at->left) start_row(c, t, at);
  return true;
}

/* ---- units -------------------------------------------------------------------------------- */

static void add_end(model *m, unit *u, const tw_task_word *t, int64_t number, int64_t time,
                    int32_t banks) {
  if (u->count == ENDINGS) {
    tw_job_error(m->job, TW_ERROR_INTERNAL, number, "more tasks end at once than can");
    return;
  }
  u->ends[(u->first + u->count++) % ENDINGS] = (ending){time, number, t->f[F_PUSH], banks};
}

static void add_steal(model *m, int64_t time, int32_t bank) {
  if (m->steal_end - m->steal_first == m->steal_room) {
    int64_t room = 2 * m->steal_room;
    steal *larger = malloc((size_t)room * sizeof *larger);
    if (!larger) {
      tw_job_error(m->job, TW_ERROR_NO_MEMORY, -1, "not enough memory for the model");
      return;
    }
    for (int64_t i = m->steal_first; i < m->steal_end; ++i) {
      larger[i % room] = m->steals[i % m->steal_room];
    }
    free(m->steals);
    m->steals = larger;
    m->steal_room = room;
  }
  m->steals[m->steal_end++ % m->steal_room] = (steal){time, bank};
}

static void write_entry(model *m, unit *u, int64_t time) {
  const tw_accel_config *c = &m->machine->config;
  if (c->format_memory[u->task.op][u->task.f[F_FMT]] == TW_ACC) {
    add_steal(m, time + 1, m->machine->bank[u->place]);
  }
  ++u->place;
  u->words = 0;
}

static void pad(model *m, unit *u, int64_t count) {
  if (m->machine->config.format_memory[u->task.op][u->task.f[F_FMT]] != TW_ACC) {
    u->place += count;
    u->writer += count;
    return;
  }
  for (; count > 0; --count) write_entry(m, u, u->writer++);
}

static void begin_transfer(model *m, unit *u, int64_t number, const tw_task_word *t) {
  const tw_accel_config *c = &m->machine->config;
  u->task = *t;
  u->number = number;
  u->begun = m->now;
  u->free_at = m->now + 1;
  start_requests(c, t, &u->at);
  u->has_next = next_request(c, t, &u->at, &u->next);
  int64_t setup = tw_max64(m->now + 1, u->writer);
  u->setups[u->setup_count++] = setup;
  u->writer = setup + 1;
  u->place = t->f[F_SRAM];
  u->words = 0;
  u->per_entry = tw_max64(1, tw_format_bytes(c, t) / c->bus_bytes);
  if (u->has_next) {
    pad(m, u, u->next.pads);
    return;
  }
  pad(m, u, tw_task_entries(t));
  u->writer = tw_max64(u->writer, setup + 2);
  add_end(m, u, t, number, u->writer + 1, 0);
}

static void send_request(model *m, unit *u) {
  const tw_accel_config *c = &m->machine->config;
  request one = u->next;
  int64_t first = tw_max64(m->now + next_delay(&m->read_delay), m->bus_free);
  first = tw_max64(first, u->writer);
  m->bus_free = u->writer = first + one.words;
  m->job->counters[TW_COUNT_READ_BEATS] += one.beats;
  u->flying[u->flying_count++] = m->bus_free;
  if (c->format_memory[u->task.op][u->task.f[F_FMT]] == TW_ACC) {
    for (int64_t at = 0; at < one.words; ++at) {
      if (++u->words == u->per_entry) write_entry(m, u, first + at);
    }
  } else {
    u->words += one.words;
    u->place += u->words / u->per_entry;
    u->words %= u->per_entry;
  }
  u->has_next = next_request(c, &u->task, &u->at, &u->next);
  if (u->has_next) {
    pad(m, u, u->next.pads);
    return;
  }
  pad(m, u, u->task.f[F_SRAM] + tw_task_entries(&u->task) - u->place);
  u->free_at = m->now + 1;
  add_end(m, u, &u->task, u->number, u->writer + 1, 0);
}

static void begin_store(model *m, unit *u, int64_t number, const tw_task_word *t, int32_t banks) {
  const tw_accel_config *c = &m->machine->config;
  int64_t at = m->now + 1;
  cursor where = {0};
  request one;
  if (t->op == TW_ACCEL_STORE) start_requests(c, t, &where);
  bool is_real = next_request(c, t, &where, &one);
  do {
    at = tw_max64(at, m->answers[m->answer] + 1);
    int64_t answer = at + 1;
    if (is_real) {
      answer = at + one.words + next_delay(&m->write_delay);
      at += one.words;
      m->job->counters[TW_COUNT_WRITE_BEATS] += one.beats;
    }
    ++at;
    int32_t last = (m->answer + c->in_flight - 1) % c->in_flight;
    m->answers[m->answer] = tw_max64(answer, m->answers[last] + 1);
    m->answer = (m->answer + 1) % c->in_flight;
    is_real = next_request(c, t, &where, &one);
  } while (is_real);
  u->free_at = at;
  int64_t answered = m->answers[(m->answer + c->in_flight - 1) % c->in_flight];
  add_end(m, u, t, number, answered + c->latency[t->op], banks);
}

static int32_t owned_banks(const model *m, const tw_task_word *t) {
  if (t->op == TW_ACCEL_GEMM || t->op == TW_ACCEL_ALU) return (int32_t)t->f[F_BANKS];
  if (t->op != TW_ACCEL_STORE) return 0;
  return m->machine->config.format_memory[t->op][t->f[F_FMT]] == TW_ACC ? (int32_t)t->f[F_BANKS]
                                                                        : 0;
}

static bool can_begin(model *m, int32_t own, const tw_task_word *t) {
  unit *u = &m->units[own];
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    if (t->f[F_POP] >> other & 1 && !m->tokens[other][own]) return false;
  }
  if (own == LOAD || own == AUX) {
    int32_t gone = 0;
    while (gone < u->setup_count && u->setups[gone] < m->now) ++gone;
    u->setup_count -= gone;
    memmove(u->setups, u->setups + gone, (size_t)u->setup_count * sizeof *u->setups);
    return u->setup_count < m->machine->config.ahead;
  }
  int32_t banks = owned_banks(m, t);
  for (int32_t other = GEMM; banks && other <= STORE; ++other) {
    const unit *o = &m->units[other];
    for (int32_t i = 0; other != own && i < o->count; ++i) {
      if (banks & o->ends[(o->first + i) % ENDINGS].banks) return false;
    }
  }
  return true;
}

static void try_begin(model *m, int32_t own) {
  unit *u = &m->units[own];
  tw_task_queue *queue = &m->queues[own];
  if (!queue->count || u->has_next || u->free_at > m->now) return;
  const tw_task_word *t = &queue->task[queue->head];
  int64_t number = queue->number[queue->head];
  if (!can_begin(m, own, t)) return;
  queue->head = (queue->head + 1) % m->machine->config.queue_depth;
  --queue->count;
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    m->tokens[other][own] -= t->f[F_POP] >> other & 1;
  }
  m->happened = true;
  if (m->job->begin) m->job->begin[number] = m->now;
  if (tw_task_execute(m->machine, m->job, number, t, m->timing_only) != TW_OK) return;
  if (own == LOAD || own == AUX) {
    begin_transfer(m, u, number, t);
  } else if (own == STORE) {
    begin_store(m, u, number, t, owned_banks(m, t));
  } else {
    int64_t count = tw_max64(1, tw_task_cycles(m->machine, t));
    int64_t latency = m->machine->config.latency[t->op], end = m->now + count + latency;
    int64_t alu_gap = t->f[F_FN] == TW_RESCALE ? latency : m->machine->config.alu_gap;
    u->free_at = m->now + count + (own == ALU ? alu_gap : 0);
    add_end(m, u, t, number, end, owned_banks(m, t));
    if (own == GEMM) m->job->counters[TW_COUNT_GEMM_STEPS] += tw_task_steps(t);
  }
}

/* ---- cycles ------------------------------------------------------------------------------- */

static void finish(model *m, int32_t own, const ending *e) {
  if (m->job->end) m->job->end[e->number] = e->time;
  ++m->job->counters[TW_COUNT_TASKS];
  for (int32_t other = 0; other < TW_ACCEL_QUEUES; ++other) {
    m->tokens[own][other] += e->pushes >> other & 1;
    if (m->tokens[own][other] > m->machine->config.token_max) {
      tw_job_error(m->job, TW_ACCEL_TOKENS, e->number, "%lld: a counter exceeds %d tokens",
                   (long long)e->number, m->machine->config.token_max);
    }
  }
}

static void stop_owner(model *m, int32_t bank) {
  for (int32_t own = GEMM; own <= ALU; ++own) {
    unit *u = &m->units[own];
    bool owns = false;
    for (int32_t i = 0; i < u->count; ++i) {
      owns = owns || u->ends[(u->first + i) % ENDINGS].banks >> bank & 1;
    }
    if (!owns) continue;
    u->free_at = tw_max64(u->free_at, m->now) + 1;
    for (int32_t i = 0; i < u->count; ++i) ++u->ends[(u->first + i) % ENDINGS].time;
  }
}

static void fetch(model *m) {
  const tw_accel_config *c = &m->machine->config;
  int64_t count = tw_min64(m->chunk, m->job->tasks - m->asked), size = c->word_bytes;
  int64_t beats = (count * size + c->bus_bytes - 1) / c->bus_bytes;
  int64_t first = tw_max64(m->now + next_delay(&m->read_delay), m->bus_free);
  m->bus_free = first + beats;
  m->job->counters[TW_COUNT_READ_BEATS] += beats;
  for (int64_t at = 0; at < count; ++at) {
    int64_t come = first + ((at + 1) * size + c->bus_bytes - 1) / c->bus_bytes;
    m->arrivals[(m->asked + at) % m->arrival_room] = come;
  }
  m->asked += count;
  m->happened = true;
}

static void grant(model *m, bool fetch_wants) {
  if (fetch_wants) {
    fetch(m);
    return;
  }
  for (int32_t own = AUX; own >= LOAD; --own) {
    unit *u = &m->units[own];
    int32_t gone = 0;
    while (gone < u->flying_count && u->flying[gone] <= m->now) ++gone;
    u->flying_count -= gone;
    memmove(u->flying, u->flying + gone, (size_t)u->flying_count * sizeof *u->flying);
    if (u->has_next && u->begun < m->now && u->flying_count < m->machine->config.in_flight) {
      send_request(m, u);
      m->happened = true;
      return;
    }
  }
}

/* The time of the next possible event. */
static int64_t next_time(const model *m) {
  if (m->happened) return m->now + 1;
  int64_t next = NEVER;
  for (int32_t own = 0; own < TW_ACCEL_QUEUES; ++own) {
    const unit *u = &m->units[own];
    if (u->count) next = tw_min64(next, u->ends[u->first].time);
    if (u->free_at > m->now) next = tw_min64(next, u->free_at);
    if (u->flying_count && u->has_next) next = tw_min64(next, u->flying[0]);
    if (u->setup_count && u->setups[0] >= m->now) next = tw_min64(next, u->setups[0] + 1);
  }
  if (m->steal_first < m->steal_end) {
    next = tw_min64(next, m->steals[m->steal_first % m->steal_room].time);
  }
  if (m->sent < m->asked) {
    int64_t come = m->arrivals[m->sent % m->arrival_room];
    if (come > m->now) next = tw_min64(next, come);
  }
  return next;
}

static void send(model *m, bool *have, tw_task_word *next, int32_t room) {
  tw_task_queue *queue = &m->queues[next->queue];
  int32_t place = (queue->head + queue->count++) % room;
  queue->task[place] = *next;
  queue->number[place] = m->sent++;
  *have = false;
  m->happened = true;
}

static void run_model(model *m) {
  tw_accel_job *job = m->job;
  const tw_accel_config *c = &m->machine->config;
  tw_task_word next = {0};
  bool have = false;
  while (job->code == TW_OK && job->counters[TW_COUNT_TASKS] < job->tasks) {
    m->happened = false;
    for (int32_t own = 0; own < TW_ACCEL_QUEUES; ++own) {
      unit *u = &m->units[own];
      while (u->count && u->ends[u->first].time <= m->now) {
        finish(m, own, &u->ends[u->first]);
        u->first = (u->first + 1) % ENDINGS;
        --u->count;
      }
    }
    while (m->steal_first < m->steal_end &&
           m->steals[m->steal_first % m->steal_room].time <= m->now) {
      stop_owner(m, m->steals[m->steal_first++ % m->steal_room].bank);
    }
    bool wants = m->asked < job->tasks && m->asked - m->sent <= m->chunk * (c->fetch_ahead - 1);
    if (!have && m->sent < m->asked && m->arrivals[m->sent % m->arrival_room] <= m->now) {
      have = tw_task_decode(c, job, m->sent, &next) == TW_OK;
    }
    bool sends = have && m->queues[next.queue].count < c->queue_depth;
    for (int32_t own = 0; own < TW_ACCEL_QUEUES; ++own) try_begin(m, own);
    if (sends) send(m, &have, &next, c->queue_depth);
    grant(m, wants);
    int64_t then = next_time(m);
    job->counters[TW_COUNT_CYCLES] = m->now;
    bool is_done = job->counters[TW_COUNT_TASKS] == job->tasks;
    if (!is_done && then - m->now > job->timeout_cycles) {
      tw_job_error(job, TW_ACCEL_TIMEOUT, -1,
                   then == NEVER ? "the stream does not end: all tasks wait for tokens"
                                 : "nothing has happened for too long");
    }
    m->now = then;
  }
}

static void run(tw_machine *machine, tw_accel_job *job, bool timing_only) {
  const tw_accel_config *c = &machine->config;
  model *m = calloc(1, sizeof *m);
  bool ok = m && c->in_flight <= 64 && c->ahead <= 15;
  if (ok) {
    m->machine = machine;
    m->job = job;
    m->timing_only = timing_only;
    m->read_delay = make_delay(c->latency_cycles, job->seed, 0);
    m->write_delay = make_delay(c->latency_cycles, job->seed, 1);
    for (int32_t i = 0; i < c->in_flight; ++i) m->answers[i] = -1;
    m->chunk = tw_max64(1, (int64_t)c->burst_beats * c->bus_bytes / c->word_bytes);
    m->arrival_room = m->chunk * (c->fetch_ahead + 1);
    m->arrivals = calloc((size_t)m->arrival_room, sizeof *m->arrivals);
    m->steal_room = 4096;
    m->steals = malloc((size_t)m->steal_room * sizeof *m->steals);
    ok = tw_queues_init(m->queues, c->queue_depth) && m->arrivals && m->steals;
  }
  if (ok) {
    tw_machine_clear(machine);
    run_model(m);
  } else {
    tw_job_error(job, TW_ERROR_NO_MEMORY, -1, "not enough memory for the model");
  }
  if (m) {
    tw_queues_free(m->queues);
    free(m->arrivals);
    free(m->steals);
  }
  free(m);
}

static void run_all(void *opened, tw_accel_job *job) { run(opened, job, false); }
static void run_timing(void *opened, tw_accel_job *job) { run(opened, job, true); }

const tw_accel_backend_api tw_accel_cycle = {TW_ACCEL_VERSION, tw_machine_open, run_all,
                                             tw_machine_close};
const tw_accel_backend_api tw_accel_timing = {TW_ACCEL_VERSION, tw_machine_open, run_timing,
                                              tw_machine_close};
