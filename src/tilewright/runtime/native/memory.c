/* Aligned memory, and scratch memory cached per thread.
 *
 * A kernel allocates its scratch memory on every call, from any worker. malloc would return large
 * blocks to the operating system each time and fault their pages in again; so freed blocks are kept
 * in a short list of the freeing thread, for later requests of about the same size.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "tilewright.h"

static const int64_t HUGE_PAGE = INT64_C(2) << 20;

static int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

void *tw_alloc(int64_t size_bytes) {
  void *memory = NULL;
  if (size_bytes >= 0 && size_bytes <= INT64_MAX / 2 && (uint64_t)size_bytes <= SIZE_MAX / 2) {
    int64_t align = size_bytes < 2 * HUGE_PAGE ? TW_ALIGN : HUGE_PAGE;
    int64_t size = round_up(size_bytes > 0 ? size_bytes : 1, TW_ALIGN);
    if (posix_memalign(&memory, (size_t)align, (size_t)size) != 0) memory = NULL;
#if defined(__linux__)
    /* Fewer TLB misses on matrices; advisory, so failure is ignored. */
    if (memory && align == HUGE_PAGE) madvise(memory, (size_t)size, MADV_HUGEPAGE);
#endif
  }
  if (!memory) tw_errorf(TW_ERROR_NO_MEMORY, "cannot allocate %" PRId64 " bytes", size_bytes);
  return memory;
}

void tw_free(void *memory) { free(memory); }

/* ---- workspaces ---- */

enum { MAX_CACHED = 16 };

/* Precedes every workspace, one alignment unit long. */
typedef union block {
  struct {
    int64_t capacity;
    union block *next;
  };
  char unit[TW_ALIGN];
} block;

typedef struct {
  block *first;
  int32_t count;
} cache;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its destructor frees a thread's cache */
static _Thread_local cache mine;

static void drop(cache *all) {
  while (all->first) {
    block *next = all->first->next;
    tw_free(all->first);
    all->first = next;
  }
  all->count = 0;
}

static void drop_at_exit(void *all) { drop(all); }

static void make_key(void) { pthread_key_create(&key, drop_at_exit); }

void *tw_workspace_alloc(int64_t size_bytes) {
  if (size_bytes < 0 || size_bytes > INT64_MAX / 4) {
    tw_errorf(TW_ERROR_NO_MEMORY, "cannot allocate %" PRId64 " bytes of scratch", size_bytes);
    return NULL;
  }
  /* First fit, except blocks over four times too large, which are kept for large requests. */
  for (block **at = &mine.first; *at; at = &(*at)->next) {
    block *found = *at;
    if (found->capacity >= size_bytes && found->capacity / 4 <= size_bytes + 1024) {
      *at = found->next;
      mine.count--;
      return found + 1;
    }
  }
  int64_t capacity = round_up(size_bytes + size_bytes / 8 + 1, 4096) - (int64_t)sizeof(block);
  if (capacity < size_bytes) capacity += 4096;
  block *made = tw_alloc(capacity + (int64_t)sizeof(block));
  if (!made) return NULL;
  made->capacity = capacity;
  return made + 1;
}

void tw_workspace_free(void *memory) {
  if (!memory) return;
  block *returned = (block *)memory - 1;
  if (mine.count == 0) {
    pthread_once(&once, make_key);
    pthread_setspecific(key, &mine);
  }
  returned->next = mine.first;
  mine.first = returned;
  if (++mine.count <= MAX_CACHED) return;
  block **last = &mine.first; /* evict the least recently used */
  while ((*last)->next) last = &(*last)->next;
  tw_free(*last);
  *last = NULL;
  mine.count--;
}

void tw_workspace_trim(void) { drop(&mine); }
