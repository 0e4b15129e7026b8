/* Books of memories and clocks of tasks. */
#include "books.h"

#include <stdlib.h>
#include <string.h>

static bool make_book(tw_book *b, int64_t size, int64_t unit) {
  size_t cells = (size_t)tw_max64(size, 1);
  *b = (tw_book){size, unit, malloc(cells * sizeof(int32_t)),
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

/* Buffers that tasks write are booked in units that divide all accesses. */
static bool make_books(tw_books *books) {
  const tw_accel_config *c = &books->machine->config;
  tw_accel_job *job = books->job;
  int64_t unit[TW_ACCEL_BASES] = {0};
  tw_task_word t;
  for (int64_t at = 0; at < job->tasks; ++at) {
    if (tw_task_decode(c, job, at, &t) != TW_OK) return true; /* the job says what is wrong */
    if (c->fields[t.op][F_BASE].bits == 0) continue;
    int64_t *found = &unit[t.f[F_BASE]];
    *found = divisor(divisor(*found, t.f[F_OFFSET]), tw_format_bytes(c, &t));
  }
  for (int32_t i = 0; i < job->buffers; ++i) {
    const tw_accel_buffer *b = &job->buffer[i];
    if (!b->is_writable || !unit[i]) continue;
    int64_t bytes = divisor(unit[i], b->bytes);
    if (bytes && !make_book(&books->buffer[i], b->bytes / bytes, bytes)) return false;
  }
  for (int32_t i = 0; i < TW_ACCEL_MEMORIES; ++i) {
    if (!make_book(&books->memory[i], c->depth[i], 1)) return false;
  }
  return true;
}

bool tw_books_init(tw_books *books, tw_machine *machine, tw_accel_job *job) {
  *books = (tw_books){.machine = machine, .job = job};
  size_t tasks = (size_t)job->tasks;
  books->clock = malloc(tasks * sizeof *books->clock);
  books->place = malloc(tasks * sizeof *books->place);
  books->queue = malloc(tasks);
  for (int32_t queue = 0; queue < TW_ACCEL_QUEUES; ++queue) books->last[queue] = TW_NOBODY;
  return books->clock && books->place && books->queue && make_books(books);
}

void tw_books_free(tw_books *books) {
  tw_book *all[] = {books->memory, books->buffer};
  const int32_t counts[] = {TW_ACCEL_MEMORIES, TW_ACCEL_BASES};
  for (int32_t kind = 0; kind < 2; ++kind) {
    for (int32_t i = 0; i < counts[kind]; ++i)
      free(all[kind][i].writer), free(all[kind][i].readers);
  }
  free(books->clock), free(books->place), free(books->queue);
}

void tw_books_begin(tw_books *books, int64_t number, int32_t queue) {
  books->number = (int32_t)number;
  books->queue[number] = (uint8_t)queue;
  books->place[number] = books->begun[queue]++;
  memset(books->clock[number], 0, sizeof books->clock[number]);
  if (books->last[queue] != TW_NOBODY) tw_books_follow(books, books->last[queue]);
  books->last[queue] = number;
}

void tw_books_follow(tw_books *books, int64_t earlier) {
  int32_t *clock = books->clock[books->number];
  const int32_t *its = books->clock[earlier];
  for (int32_t i = 0; i < TW_ACCEL_QUEUES; ++i) clock[i] = its[i] > clock[i] ? its[i] : clock[i];
  int32_t queue = books->queue[earlier], behind = books->place[earlier] + 1;
  clock[queue] = behind > clock[queue] ? behind : clock[queue];
}
