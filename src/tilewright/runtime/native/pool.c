/* The thread pool.
 *
 * A parallel region is published in one of a few static slots; idle workers look for open slots.
 * Each thread of a region owns a contiguous share of the indices, divided into a few grains. A
 * participant takes grains from its own share first, so that consecutive regions find their data in
 * the same core's cache, and then steals from the others'. The caller participates as well: a
 * worker that is late, asleep or descheduled delays only the grain that it has taken, and a small
 * region may end before workers notice it.
 *
 * An alternating task traverses its shares in the opposite direction on every other run: it begins
 * with the data that it touched last, which is still in a cache that is smaller than all of it. The
 * steps of a recurrent layer reuse most of their weights that way.
 *
 * Idle workers spin briefly and then sleep, and so does a caller that waits for its workers:
 * back-to-back regions make no system calls, and a busy machine is not loaded further. There is no
 * yielding: it gives up the time slice on a shared core, milliseconds instead of the few
 * microseconds of the wait, while a thread that sleeps is scheduled again when it wakes.
 *
 * If no core is idle, Linux starts a thread on the core of its waker. A worker there would compete
 * with the caller that it should help, so it moves to another core and stays away.
 *
 * Slots are static memory, not on a caller's stack: a late worker may read a slot that has been
 * closed, or reused, without harm. The whole state of a slot is one atomic word, so joining,
 * leaving and closing are atomic.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cores.h"
#include "tilewright.h"

enum {
  MAX_REGIONS = 16,  /* concurrent callers; others run their regions without workers */
  MAX_THREADS = 256, /* per region */
  GRAINS = 8,        /* per share */
  CACHE_LINE = 64
};

static const int64_t SPIN_NS = 60 * 1000; /* then sleep */

/* The state of a slot; 0 means free. */
enum {
  OWNED = 1 << 30,                /* owned by a caller */
  OPEN = 1 << 29,                 /* workers may join */
  WAITING = 1 << 28,              /* the caller sleeps until the last worker leaves */
  SEAT = 1 << 12,                 /* free places of workers (bits 12..23) */
  SEATS = ((1 << 12) - 1) * SEAT, /* mask of their number */
  INSIDE = SEAT - 1               /* number of workers inside */
};

typedef struct {
  _Alignas(CACHE_LINE) _Atomic int64_t taken; /* next index of begin..end, in grains */
  int64_t begin, end;
} share;

typedef struct {
  _Alignas(CACHE_LINE) _Atomic int32_t state;
  /* Written by the owner before the slot opens. */
  _Alignas(CACHE_LINE) tw_task task;
  void *env;
  int64_t grain;
  int32_t threads;
  uint32_t float_mode; /* the caller's */
  bool backward;
  /* The first error, written by the thread that sets `code`. */
  _Atomic int32_t code;
  char message[512];
  share shares[MAX_THREADS];
} region;

static struct {
  region regions[MAX_REGIONS];
  _Alignas(CACHE_LINE) _Atomic uint32_t epoch; /* incremented for every published region */
  _Alignas(CACHE_LINE) _Atomic int32_t sleepers;
  _Atomic int32_t workers;
  _Atomic int32_t waker_core; /* core of the caller that last woke a worker; -1: unknown */
  pthread_mutex_t mutex;      /* guards sleeping, starting and ending; never held during work */
  pthread_cond_t published, left, ended;
  bool ending;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER,
          .published = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER,
          .ended = PTHREAD_COND_INITIALIZER};

/* Number of runs by task address: odd and even runs differ in direction. Two alternating tasks that
 * share an entry would never change direction, so the table is large.
 */
enum { RUNS_BITS = 10 };
static _Atomic uint32_t runs[1 << RUNS_BITS];

static _Thread_local bool inside_region;
static _Thread_local int32_t own_threads;
static _Atomic int32_t process_threads;

/* ---- waiting ---- */

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* One step of a bounded wait; false if it is time to sleep. */
static bool keep_spinning(int64_t *started, uint32_t *steps) {
  relax();
  if (++*steps % 32 != 0) return true; /* reading the clock costs as much as a few pauses */
  int64_t now = now_ns();
  if (*started == 0) *started = now;
  return now - *started <= SPIN_NS;
}

/* Before signalling, wait for threads that are about to sleep, so that they get the signal. The
 * mutex is free again then: a thread that wakes on this core and finds it taken would sleep again.
 */
static void await_sleepers(void) {
  pthread_mutex_lock(&pool.mutex);
  pthread_mutex_unlock(&pool.mutex);
}

/* ---- cores ---- */

#if defined(__linux__)
static int32_t current_core(void) { return sched_getcpu(); }

/* Move to another core than `core`, if this worker may use one. A restriction to exactly the cores
 * that the worker has chosen itself cannot be recognized. */
static void avoid_core(int32_t core) {
  static _Thread_local cpu_set_t usable, chosen; /* set by others, and by this function */
  cpu_set_t now;
  if (core < 0 || current_core() != core) return;
  if (sched_getaffinity(0, sizeof now, &now) != 0) return;
  if (!CPU_EQUAL(&now, &chosen)) usable = now;
  chosen = usable;
  CPU_CLR(core, &chosen);
  if (CPU_COUNT(&chosen) > 0) sched_setaffinity(0, sizeof chosen, &chosen);
}
#else
static int32_t current_core(void) { return -1; }
static void avoid_core(int32_t core) { (void)core; }
#endif

/* ---- participation in a region ---- */

static bool take_grain(share *from, const region *r, int64_t *begin, int64_t *end) {
  int64_t size = from->end - from->begin;
  if (atomic_load_explicit(&from->taken, memory_order_relaxed) >= size) return false;
  int64_t first = atomic_fetch_add_explicit(&from->taken, r->grain, memory_order_relaxed);
  if (first >= size) return false;
  int64_t last = first + r->grain < size ? first + r->grain : size;
  *begin = r->backward ? from->end - last : from->begin + first;
  *end = r->backward ? from->end - first : from->begin + last;
  return true;
}

static void record_error(region *r, int32_t code) {
  int32_t none = TW_OK;
  if (atomic_compare_exchange_strong(&r->code, &none, code)) {
    strncpy(r->message, tw_last_error(), sizeof r->message - 1);
  }
}

static void take_part(region *r, int32_t seat) {
  int64_t begin, end;
  for (int32_t k = 0; k < r->threads; ++k) {
    share *from = &r->shares[(seat + k) % r->threads];
    while (atomic_load_explicit(&r->code, memory_order_relaxed) == TW_OK &&
           take_grain(from, r, &begin, &end)) {
      int32_t code = r->task(r->env, begin, end);
      if (code != TW_OK) record_error(r, code);
    }
  }
  /* All grains are taken: close the region, to save others the search. */
  if (atomic_load_explicit(&r->state, memory_order_relaxed) & OPEN) {
    atomic_fetch_and_explicit(&r->state, ~OPEN, memory_order_relaxed);
  }
}

/* ---- workers ---- */

static bool try_join(region *r) {
  int32_t state = atomic_load_explicit(&r->state, memory_order_relaxed);
  while (state & OPEN && state & SEATS) {
    if (atomic_compare_exchange_weak_explicit(&r->state, &state, state - SEAT + 1,
                                              memory_order_acquire, memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

static void leave(region *r) {
  int32_t before = atomic_fetch_sub_explicit(&r->state, 1, memory_order_release);
  if (before & WAITING && (before & INSIDE) == 1) {
    await_sleepers();
    pthread_cond_broadcast(&pool.left);
  }
}

static bool help_someone(int32_t worker) {
  bool helped = false;
  for (int i = 0; i < MAX_REGIONS; ++i) {
    region *r = &pool.regions[i];
    if (!try_join(r)) continue;
    tw_set_float_mode(r->float_mode);
    int64_t begin = tw_profile_begin_share();
    take_part(r, 1 + worker % (r->threads - 1));
    tw_profile_end("", begin, 0, 0); /* before the caller continues and may stop profiling */
    leave(r);
    helped = true;
  }
  return helped;
}

/* Wait for a region published after `seen`; false if the worker should end. */
static bool await_region(uint32_t seen) {
  int64_t started = 0;
  uint32_t steps = 0;
  do {
    if (atomic_load_explicit(&pool.epoch, memory_order_acquire) != seen) return true;
  } while (keep_spinning(&started, &steps));

  pthread_mutex_lock(&pool.mutex);
  atomic_fetch_add(&pool.sleepers, 1);
  while (atomic_load(&pool.epoch) == seen && !pool.ending) {
    pthread_cond_wait(&pool.published, &pool.mutex);
  }
  atomic_fetch_sub(&pool.sleepers, 1);
  bool go_on = !pool.ending;
  pthread_mutex_unlock(&pool.mutex);
  avoid_core(atomic_load_explicit(&pool.waker_core, memory_order_relaxed));
  return go_on;
}

static void *worker_main(void *number) {
  inside_region = true; /* nested regions run in the calling thread */
  uint32_t seen;
  do {
    seen = atomic_load_explicit(&pool.epoch, memory_order_acquire);
    while (help_someone((int32_t)(intptr_t)number)) continue;
  } while (await_region(seen));

  pthread_mutex_lock(&pool.mutex);
  atomic_fetch_sub(&pool.workers, 1);
  pthread_cond_broadcast(&pool.ended);
  pthread_mutex_unlock(&pool.mutex);
  return NULL;
}

/* Start workers until there are `wanted`. Failure is no error: the caller does the work. */
static void start_workers(int32_t wanted) {
  if (atomic_load_explicit(&pool.workers, memory_order_relaxed) >= wanted) return;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigset_t all, before; /* signals are delivered to the program's own threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_mutex_lock(&pool.mutex);
  int32_t count;
  while (!pool.ending && (count = atomic_load(&pool.workers)) < wanted) {
    pthread_t thread;
    if (pthread_create(&thread, &detached, worker_main, (void *)(intptr_t)count) != 0) break;
    atomic_store(&pool.workers, count + 1);
  }
  pthread_mutex_unlock(&pool.mutex);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&detached);
}

void tw_shutdown(void) {
  if (inside_region) return; /* a worker cannot wait for itself */
  pthread_mutex_lock(&pool.mutex);
  pool.ending = true;
  pthread_cond_broadcast(&pool.published);
  /* Another call may see the last worker end first; a region may then start new ones. */
  while (pool.ending && atomic_load(&pool.workers) > 0) {
    pthread_cond_wait(&pool.ended, &pool.mutex);
  }
  pool.ending = false;
  pthread_mutex_unlock(&pool.mutex);
}

/* ---- fork ---- */

static void before_fork(void) { pthread_mutex_lock(&pool.mutex); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&pool.mutex); }

/* The child has one thread: workers and regions of other callers no longer exist. */
static void after_fork_in_child(void) {
  for (int i = 0; i < MAX_REGIONS; ++i) {
    region *r = &pool.regions[i];
    int32_t state = atomic_load(&r->state);
    if (state & INSIDE) record_error(r, tw_error(TW_ERROR_CHECK, "forked in a parallel region"));
    atomic_store(&r->state, inside_region ? state & OWNED : 0);
  }
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.workers, 0);
  pthread_mutex_init(&pool.mutex, NULL);
  pthread_cond_init(&pool.published, NULL);
  pthread_cond_init(&pool.left, NULL);
  pthread_cond_init(&pool.ended, NULL);
  pool.ending = false;
}

static void survive_fork(void) {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- callers ---- */

static region *acquire_region(void) {
  for (int i = 0; i < MAX_REGIONS; ++i) {
    region *r = &pool.regions[i];
    int32_t unowned = 0;
    if (atomic_load_explicit(&r->state, memory_order_relaxed) == 0 &&
        atomic_compare_exchange_strong_explicit(&r->state, &unowned, OWNED, memory_order_acquire,
                                                memory_order_relaxed)) {
      return r;
    }
  }
  return NULL;
}

static void publish(region *r) {
  int32_t seats = r->threads - 1;
  atomic_store_explicit(&r->state, OWNED | OPEN | seats * SEAT, memory_order_release);
  /* Either a worker that is about to sleep sees this epoch, or this thread sees it sleeping. */
  atomic_fetch_add(&pool.epoch, 1);
  if (atomic_load(&pool.sleepers) == 0) return;
  atomic_store_explicit(&pool.waker_core, current_core(), memory_order_relaxed);
  await_sleepers();
  int32_t sleepers = atomic_load(&pool.sleepers); /* a snapshot, since waking threads reduce it */
  for (int32_t k = 0; k < seats && k < sleepers; ++k) pthread_cond_signal(&pool.published);
}

static bool has_workers(region *r) {
  return atomic_load_explicit(&r->state, memory_order_acquire) & INSIDE;
}

static void await_workers(region *r) {
  int64_t started = 0;
  uint32_t steps = 0;
  do {
    if (!has_workers(r)) return;
  } while (keep_spinning(&started, &steps));

  pthread_mutex_lock(&pool.mutex);
  atomic_fetch_or(&r->state, WAITING);
  while (has_workers(r)) pthread_cond_wait(&pool.left, &pool.mutex);
  pthread_mutex_unlock(&pool.mutex);
}

/* Run the whole task on the calling thread, or backward: from the last grain to the first. */
static int32_t run_alone(tw_task task, void *env, int64_t count, bool backward) {
  if (!backward) return task(env, 0, count);
  int64_t grain = count / (2 * GRAINS) > 1 ? count / (2 * GRAINS) : 1;
  for (int64_t end = count; end > 0; end -= grain) {
    int32_t code = task(env, end > grain ? end - grain : 0, end);
    if (code != TW_OK) return code;
  }
  return TW_OK;
}

static bool next_direction(tw_task task) {
  /* Hash all bits: the code of kernels is page aligned. */
  uint64_t mixed = (uint64_t)(uintptr_t)task * UINT64_C(0x9E3779B97F4A7C15);
  size_t slot = (size_t)(mixed >> (64 - RUNS_BITS));
  return atomic_fetch_add_explicit(&runs[slot], 1, memory_order_relaxed) & 1;
}

static int32_t run(tw_task task, void *env, int64_t count, int32_t threads, bool backward) {
  if (count <= 0) return TW_OK;
  if (inside_region) return run_alone(task, env, count, backward);
  if (threads <= 0) threads = tw_threads();
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  if (threads > count) threads = (int32_t)count;
  region *r = threads > 1 && count < INT64_MAX / 4 ? acquire_region() : NULL;
  if (!r) return run_alone(task, env, count, backward);

  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, survive_fork);
  start_workers(threads - 1);

  r->task = task;
  r->env = env;
  r->threads = threads;
  r->float_mode = tw_float_mode();
  r->grain = count / threads / GRAINS > 1 ? count / threads / GRAINS : 1;
  atomic_store_explicit(&r->code, TW_OK, memory_order_relaxed);
  r->backward = backward;
  int64_t begin = 0, whole = count / threads, rest = count % threads;
  for (int32_t k = 0; k < threads; ++k) {
    int64_t size = whole + (k < rest);
    atomic_store_explicit(&r->shares[k].taken, 0, memory_order_relaxed);
    r->shares[k].begin = begin;
    r->shares[k].end = begin += size;
  }

  inside_region = true;
  publish(r);
  take_part(r, 0);
  await_workers(r);
  inside_region = false;

  int32_t code = atomic_load_explicit(&r->code, memory_order_relaxed);
  if (code != TW_OK) tw_error(code, r->message);
  atomic_store_explicit(&r->state, 0, memory_order_release);
  return code;
}

int32_t tw_parallel_for(tw_task task, void *env, int64_t count, int32_t threads) {
  return run(task, env, count, threads, false);
}

int32_t tw_parallel_alternating(tw_task task, void *env, int64_t count, int32_t threads) {
  return run(task, env, count, threads, next_direction(task));
}

/* ---- number of threads ---- */

static int32_t machine_threads(void) {
  static _Atomic int32_t known;
  int32_t count = atomic_load_explicit(&known, memory_order_relaxed);
  if (count > 0) return count;
  const char *wish = getenv("TILEWRIGHT_NUM_THREADS");
  count = wish ? (int32_t)strtol(wish, NULL, 10) : 0;
  if (count <= 0) count = tw_usable_cores("");
  if (count <= 0) count = 1;
  atomic_store_explicit(&known, count, memory_order_relaxed);
  return count;
}

int32_t tw_threads(void) {
  if (own_threads > 0) return own_threads;
  int32_t wish = atomic_load_explicit(&process_threads, memory_order_relaxed);
  return wish > 0 ? wish : machine_threads();
}

void tw_set_threads(int32_t threads) {
  atomic_store_explicit(&process_threads, threads > 0 ? threads : 0, memory_order_relaxed);
}

int32_t tw_set_own_threads(int32_t threads) {
  int32_t before = own_threads;
  own_threads = threads > 0 ? threads : 0;
  return before;
}
