/* Who touched the entries of memories last, and what every task waits for: shared by the verifier,
 * which looks for what is not ordered, and by the maker of tokens, which orders it. */
#ifndef TILEWRIGHT_ACCEL_HAZARDS_H
#define TILEWRIGHT_ACCEL_HAZARDS_H

#include "machine.h"

enum { TW_NO_TASK = -1 };

typedef struct {
  int64_t size, unit;        /* cells; bytes of one, of a buffer */
  int32_t *writer, *readers; /* by cell; by queue and cell */
} tw_shadow;

typedef struct {
  tw_machine *machine;
  tw_accel_job *job;
  tw_shadow memory[TW_ACCEL_MEMORIES], buffer[TW_ACCEL_BASES]; /* no cells: nobody writes there */
  int32_t (*clock)[TW_ACCEL_QUEUES]; /* of every task: those that ended before it begins */
  int32_t *position;                 /* in its queue */
  uint8_t *queue;
  int64_t last[TW_ACCEL_QUEUES];
  int32_t begun[TW_ACCEL_QUEUES];
  int32_t number; /* the task that is looked at */
} tw_hazards;

bool tw_hazards_init(tw_hazards *hazards, tw_machine *machine, tw_accel_job *job);
void tw_hazards_free(tw_hazards *hazards);
/* The next task: it waits for the one before it in its queue. */
void tw_hazards_begin(tw_hazards *hazards, int64_t number, int32_t queue);
/* It waits for another one, too, and for what that one waits for. */
void tw_hazards_follow(tw_hazards *hazards, int64_t earlier);
/* Whether it waits for another one. */
static inline bool tw_hazards_is_ordered(const tw_hazards *b, int32_t other) {
  return other == TW_NO_TASK || other == b->number ||
         b->clock[b->number][b->queue[other]] > b->position[other];
}

#endif
