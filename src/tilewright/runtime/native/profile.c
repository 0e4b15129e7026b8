/* The profiler's ring buffer of events.
 *
 * Disabled, a kernel pays for one relaxed load. Enabled, each run writes one entry; writers never
 * wait, and when the ring is full the oldest entries are overwritten. An entry is a sequence lock:
 * its `sequence` is odd while being written and identifies its event otherwise, so that a reader
 * detects torn entries. Words are atomic because a slow writer may race with a reader.
 *
 * Names are interned for the life of the process: an event may be read after the library that named
 * it is unloaded.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tilewright.h"

enum { WORDS = (int)(sizeof(tw_profile_event) / sizeof(int64_t)) };

typedef struct {
  _Atomic int64_t sequence; /* 2 * event + 2 when event is complete, 2 * event + 1 before */
  _Atomic int64_t words[WORDS];
} entry;

/* A ring is never freed: a kernel that began under it may still end. A larger capacity replaces it,
 * the same or a smaller one reuses it. */
typedef struct ring {
  struct ring *replaced;
  int64_t capacity;
  _Atomic int64_t next; /* number of events recorded so far */
  entry entries[];
} ring;

typedef struct name {
  struct name *next; /* next in the hash bucket */
  char text[];
} name;

enum { NAME_LISTS = 1024 };

static _Atomic(name *) names[NAME_LISTS];
static _Atomic(ring *) current;
static atomic_bool enabled, shares_too;
static _Atomic int64_t oldest; /* earlier events belong to an earlier profile */
static _Atomic int64_t threads_seen;
static _Thread_local int64_t thread_number = -1;

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t tw_profile_begin(void) {
  return atomic_load_explicit(&enabled, memory_order_relaxed) ? now_ns() : 0;
}

void tw_profile_shares(int32_t recorded) { atomic_store(&shares_too, recorded != 0); }

int64_t tw_profile_begin_share(void) {
  return atomic_load_explicit(&shares_too, memory_order_relaxed) ? tw_profile_begin() : 0;
}

static const char *found_name(const name *from, const name *end, const char *text) {
  for (; from != end; from = from->next) {
    if (strcmp(from->text, text) == 0) return from->text;
  }
  return NULL;
}

/* The interned copy of a name. Lists only grow at their heads. */
static const char *kept_name(const char *text) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  for (const char *c = text; *c; ++c) hash = (hash ^ (unsigned char)*c) * 16777619u;
  _Atomic(name *) *list = &names[hash % NAME_LISTS];
  name *head = atomic_load_explicit(list, memory_order_acquire);
  const char *found = found_name(head, NULL, text);
  if (found) return found;
  size_t size_bytes = strlen(text) + 1;
  name *made = malloc(sizeof *made + size_bytes);
  if (!made) return "";
  memcpy(made->text, text, size_bytes);
  made->next = head;
  while (!atomic_compare_exchange_weak(list, &made->next, made)) {
    found = found_name(made->next, head, text); /* inserted by another thread meanwhile */
    head = made->next;
    if (found) {
      free(made);
      return found;
    }
  }
  return made->text;
}

void tw_profile_end(const char *kernel, int64_t begin, int64_t flops, int64_t size_bytes) {
  if (begin == 0) return;
  ring *events = atomic_load_explicit(&current, memory_order_acquire);
  if (!events) return;
  if (thread_number < 0) thread_number = atomic_fetch_add(&threads_seen, 1);

  tw_profile_event event = {.kernel = kept_name(kernel),
                            .begin_ns = begin,
                            .end_ns = now_ns(),
                            .flops = flops,
                            .size_bytes = size_bytes,
                            .thread = thread_number};
  int64_t words[WORDS];
  memcpy(words, &event, sizeof event);

  int64_t number = atomic_fetch_add_explicit(&events->next, 1, memory_order_relaxed);
  entry *slot = &events->entries[number % events->capacity];
  atomic_store_explicit(&slot->sequence, 2 * number + 1, memory_order_relaxed);
  for (int i = 0; i < WORDS; ++i) {
    atomic_store_explicit(&slot->words[i], words[i], memory_order_release);
  }
  atomic_store_explicit(&slot->sequence, 2 * number + 2, memory_order_release);
}

int32_t tw_profile_start(int64_t capacity) {
  if (capacity < 1) capacity = 1;
  ring *before = atomic_load_explicit(&current, memory_order_acquire), *events = before;
  if (!events || events->capacity < capacity) {
    if (capacity > (INT64_MAX / 2) / (int64_t)sizeof(entry)) {
      return tw_error(TW_ERROR_NO_MEMORY, "the profiler's capacity is too large");
    }
    int64_t size_bytes = (int64_t)sizeof(ring) + capacity * (int64_t)sizeof(entry);
    events = tw_alloc(size_bytes);
    if (!events) return TW_ERROR_NO_MEMORY;
    memset(events, 0, (size_t)size_bytes);
    events->replaced = before;
    events->capacity = capacity;
    atomic_store_explicit(&current, events, memory_order_release);
  }
  atomic_store(&oldest, atomic_load(&events->next));
  atomic_store(&enabled, true);
  return TW_OK;
}

void tw_profile_stop(void) { atomic_store(&enabled, false); }

static bool read_entry(ring *events, int64_t number, tw_profile_event *event) {
  entry *slot = &events->entries[number % events->capacity];
  int64_t words[WORDS];
  if (atomic_load_explicit(&slot->sequence, memory_order_acquire) != 2 * number + 2) return false;
  for (int i = 0; i < WORDS; ++i) {
    words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
  }
  if (atomic_load_explicit(&slot->sequence, memory_order_relaxed) != 2 * number + 2) return false;
  memcpy(event, words, sizeof *event);
  return true;
}

int64_t tw_profile_read(tw_profile_event *events, int64_t limit, int64_t *lost) {
  ring *from = atomic_load_explicit(&current, memory_order_acquire);
  int64_t copied = 0, recorded = 0;
  if (from) {
    int64_t next = atomic_load(&from->next), first = atomic_load(&oldest);
    recorded = next - first;
    if (limit > from->capacity) limit = from->capacity;
    if (first < next - limit) first = next - limit;
    for (int64_t number = first; number < next; ++number) {
      if (read_entry(from, number, &events[copied])) copied++;
    }
  }
  if (lost) *lost = recorded - copied;
  return copied;
}
