/* Shadow memory, and vector clocks of tasks. */
#include "hazards.h"

#include <stdlib.h>
#include <string.h>

static bool make_shadow(tw_shadow *b, int64_t size, int64_t unit) {
  size_t cells = (size_t)tw_max64(size, 1);
  *b = (tw_shadow){size, unit, malloc(cells * sizeof(int32_t)),
                   malloc(TW_ACCEL_QUEUES * cells * sizeof(int32_t))};
  if (!b->writer || !b->readers) return false;
  memset(b->writer, 0xFF, cells * sizeof(int32_t));
  memset(b->readers, 0xFF, TW_ACCEL_QUEUES * cells * sizeof(int32_t));
  return true;
}

static int64_t divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Buffers that tasks write have a cell per unit, which divides all accesses. */
static bool make_shadows(tw_hazards *hazards) {
  const tw_accel_config *c = &hazards->machine->config;
  tw_accel_job *job = hazards->job;
  int64_t unit[TW_ACCEL_BASES] = {0};
  tw_task_word t;
  for (int64_t at = 0; at < job->tasks; ++at) {
    if (tw_task_decode(c, job, at, &t) != TW_OK) return true; /* the job reports the error */
    if (c->fields[t.op][F_BASE].bits == 0) continue;
    int64_t *found = &unit[t.f[F_BASE]];
    *found = divisor(divisor(*found, t.f[F_OFFSET]), tw_format_bytes(c, &t));
  }
  for (int32_t i = 0; i < job->buffers; ++i) {
    const tw_accel_buffer *b = &job->buffer[i];
    if (!b->is_writable || !unit[i]) continue;
    int64_t bytes = divisor(unit[i], b->bytes);
    if (bytes && !make_shadow(&hazards->buffer[i], b->bytes / bytes, bytes)) return false;
  }
  for (int32_t i = 0; i < TW_ACCEL_MEMORIES; ++i) {
    if (!make_shadow(&hazards->memory[i], c->depth[i], 1)) return false;
  }
  return true;
}

bool tw_hazards_init(tw_hazards *hazards, tw_machine *machine, tw_accel_job *job) {
  *hazards = (tw_hazards){.machine = machine, .job = job};
  size_t tasks = (size_t)job->tasks;
  hazards->clock = malloc(tasks * sizeof *hazards->clock);
  hazards->position = malloc(tasks * sizeof *hazards->position);
  hazards->queue = malloc(tasks);
  for (int32_t queue = 0; queue < TW_ACCEL_QUEUES; ++queue) hazards->last[queue] = TW_NO_TASK;
  return hazards->clock && hazards->position && hazards->queue && make_shadows(hazards);
}

void tw_hazards_free(tw_hazards *hazards) {
  tw_shadow *all[] = {hazards->memory, hazards->buffer};
  const int32_t counts[] = {TW_ACCEL_MEMORIES, TW_ACCEL_BASES};
  for (int32_t kind = 0; kind < 2; ++kind) {
    for (int32_t i = 0; i < counts[kind]; ++i)
      free(all[kind][i].writer), free(all[kind][i].readers);
  }
  free(hazards->clock), free(hazards->position), free(hazards->queue);
}

void tw_hazards_begin(tw_hazards *hazards, int64_t number, int32_t queue) {
  hazards->number = (int32_t)number;
  hazards->queue[number] = (uint8_t)queue;
  hazards->position[number] = hazards->begun[queue]++;
  memset(hazards->clock[number], 0, sizeof hazards->clock[number]);
  if (hazards->last[queue] != TW_NO_TASK) tw_hazards_follow(hazards, hazards->last[queue]);
  hazards->last[queue] = number;
}

void tw_hazards_follow(tw_hazards *hazards, int64_t earlier) {
  int32_t *clock = hazards->clock[hazards->number];
  const int32_t *its = hazards->clock[earlier];
  for (int32_t i = 0; i < TW_ACCEL_QUEUES; ++i) clock[i] = its[i] > clock[i] ? its[i] : clock[i];
  int32_t queue = hazards->queue[earlier], behind = hazards->position[earlier] + 1;
  clock[queue] = behind > clock[queue] ? behind : clock[queue];
}
