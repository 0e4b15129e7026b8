/* Who touched the entries of memories last, and what every task waits for: shared by the verifier,
 * which looks for what is not ordered, and by the maker of tokens, which orders it. */
#ifndef TILEWRIGHT_ACCEL_BOOKS_H
#define TILEWRIGHT_ACCEL_BOOKS_H

#include "machine.h"

enum { TW_NOBODY = -1 };

typedef struct {
  int64_t size, unit;        /* cells; bytes of one, of a buffer */
  int32_t *writer, *readers; /* by cell; by queue and cell */
} tw_book;

typedef struct {
  tw_machine *machine;
  tw_accel_job *job;
  tw_book memory[TW_ACCEL_MEMORIES], buffer[TW_ACCEL_BASES]; /* no cells: nobody writes there */
  int32_t (*clock)[TW_ACCEL_QUEUES]; /* of every task: those that ended before it begins */
  int32_t *place;                    /* in its queue */
  uint8_t *queue;
  int64_t last[TW_ACCEL_QUEUES];
  int32_t begun[TW_ACCEL_QUEUES];
  int32_t number; /* the task that is looked at */
} tw_books;

bool tw_books_init(tw_books *books, tw_machine *machine, tw_accel_job *job);
void tw_books_free(tw_books *books);
/* The next task: it waits for the one before it in its queue. */
void tw_books_begin(tw_books *books, int64_t number, int32_t queue);
/* It waits for another one, too, and for what that one waits for. */
void tw_books_follow(tw_books *books, int64_t earlier);
/* Whether it waits for another one. */
static inline bool tw_books_is_ordered(const tw_books *b, int32_t other) {
  return other == TW_NOBODY || other == b->number ||
         b->clock[b->number][b->queue[other]] > b->place[other];
}

#endif
