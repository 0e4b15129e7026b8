/* The last accesses to entries of memories, and the dependences of every task: shared by the
 * verifier, which detects unordered accesses, and by the maker of tokens, which orders them. */
#ifndef TILEWRIGHT_ACCEL_HAZARDS_H
#define TILEWRIGHT_ACCEL_HAZARDS_H

#include "machine.h"

enum { TW_NO_TASK = -1 };

typedef struct {
  int64_t size, unit;        /* cells; bytes per cell of a buffer */
  int32_t *writer, *readers; /* by cell; by queue and cell */
} tw_shadow;

typedef struct {
  tw_machine *machine;
  tw_accel_job *job;
  tw_shadow memory[TW_ACCEL_MEMORIES], buffer[TW_ACCEL_BASES]; /* no cells: never written */
  int32_t (*clock)[TW_ACCEL_QUEUES]; /* of every task: tasks that ended before it begins */
  int32_t *position;                 /* of every task in its queue */
  uint8_t *queue;
  int64_t last[TW_ACCEL_QUEUES];
  int32_t begun[TW_ACCEL_QUEUES];
  int32_t number; /* the current task */
} tw_hazards;

bool tw_hazards_init(tw_hazards *hazards, tw_machine *machine, tw_accel_job *job);
void tw_hazards_free(tw_hazards *hazards);
/* Begin the next task: it depends on the previous one in its queue. */
void tw_hazards_begin(tw_hazards *hazards, int64_t number, int32_t queue);
/* Add a dependence on another task, and on its dependences. */
void tw_hazards_follow(tw_hazards *hazards, int64_t earlier);
/* Whether the current task depends on another one. */
static inline bool tw_hazards_is_ordered(const tw_hazards *b, int32_t other) {
  return other == TW_NO_TASK || other == b->number ||
         b->clock[b->number][b->queue[other]] > b->position[other];
}

#endif
