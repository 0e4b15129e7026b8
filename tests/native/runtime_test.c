/* Tests of the C runtime without Python: `make sanitize` builds and runs them under the thread
 * sanitizer and under the address and undefined-behaviour sanitizers.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tilewright.h"

static int failures; /* of the running test; tests check on the main thread only */

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      failures++;                                                     \
    }                                                                 \
  } while (0)

static bool has_text(const char *text) { return strstr(tw_last_error(), text) != NULL; }

/* ---- parallel regions ---- */

enum { SIZE = 10000 };

typedef struct {
  int32_t *visits; /* per index */
  int64_t fail_at; /* -1: nowhere */
  int32_t inner;   /* threads of a nested region; 0: none */
} job;

static int32_t visit(void *env, int64_t begin, int64_t end) {
  job *j = env;
  for (int64_t i = begin; i < end; ++i) {
    if (i == j->fail_at) return tw_errorf(100, "failed at %d", (int)i);
    j->visits[i]++;
  }
  return TW_OK;
}

static int32_t visit_nested(void *env, int64_t begin, int64_t end) {
  job *j = env;
  for (int64_t i = begin; i < end; ++i) {
    job inner = {j->visits + i * 10, -1, 0};
    int32_t code = tw_parallel_for(visit, &inner, 10, j->inner);
    if (code != TW_OK) return code;
  }
  return TW_OK;
}

static bool all_once(const int32_t *visits, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (visits[i] != 1) return false;
  }
  return true;
}

static bool covers_once(int64_t count, int32_t threads) {
  int32_t *visits = calloc((size_t)count + 1, sizeof *visits);
  job j = {visits, -1, 0};
  bool good = tw_parallel_for(visit, &j, count, threads) == TW_OK && all_once(visits, count) &&
              visits[count] == 0;
  free(visits);
  return good;
}

static void test_region_visits_every_index_once(void) {
  const int64_t counts[] = {1, 2, 3, 7, 8, 16, 17, 100, 1000, SIZE};
  const int32_t threads[] = {0, 1, 2, 3, 4, 7, 16, 300};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    for (size_t k = 0; k < sizeof threads / sizeof *threads; ++k) {
      EXPECT(covers_once(counts[i], threads[k]));
    }
  }
}

static void test_empty_and_negative_counts_do_nothing(void) {
  EXPECT(tw_parallel_for(visit, NULL, 0, 2) == TW_OK);
  EXPECT(tw_parallel_for(visit, NULL, -5, 2) == TW_OK);
}

static void test_thread_count_may_change_from_region_to_region(void) {
  for (int round = 0; round < 300; ++round) EXPECT(covers_once(round % 50, 1 + round % 9));
}

/* Tasks as compiled kernels have them: each at the beginning of a page. */
#define ON_A_PAGE __attribute__((aligned(4096), noinline))
static int calls[4];

#define COUNTING_TASK(at)                                                      \
  ON_A_PAGE static int32_t count_##at(void *env, int64_t begin, int64_t end) { \
    return (void)env, (void)begin, (void)end, calls[at]++, TW_OK;              \
  }
COUNTING_TASK(0)
COUNTING_TASK(1)
COUNTING_TASK(2)
COUNTING_TASK(3)

static void test_tasks_that_take_turns_turn_round(void) {
  const tw_task tasks[] = {count_0, count_1, count_2, count_3};
  int first[4], turned = 0;
  for (int round = 0; round < 2; ++round) {
    for (int at = 0; at < 4; ++at) {
      calls[at] = 0;
      EXPECT(tw_parallel_alternating(tasks[at], NULL, 64, 1) == TW_OK);
      if (round == 0) first[at] = calls[at];
      /* Forwards all indices are one call, backwards each grain is. */
      if (round == 1) turned += (first[at] == 1) != (calls[at] == 1);
    }
  }
  EXPECT(turned >= 2);                      /* addresses are random: two may share a place */
  for (int round = 0; round < 2; ++round) { /* what is not to turn round never does */
    calls[0] = 0;
    EXPECT(tw_parallel_for(tasks[0], NULL, 64, 1) == TW_OK && calls[0] == 1);
  }
}

static void test_nested_regions_finish(void) {
  int32_t *visits = calloc(SIZE, sizeof *visits);
  job j = {visits, -1, 4};
  EXPECT(tw_parallel_for(visit_nested, &j, SIZE / 10, 4) == TW_OK);
  EXPECT(all_once(visits, SIZE));
  free(visits);
}

static void test_error_reaches_the_caller_with_its_message(void) {
  for (int32_t threads = 1; threads <= 4; ++threads) {
    for (int64_t at = 0; at < 64; at += 9) {
      int32_t visits[64] = {0};
      job j = {visits, at, 0};
      char expected[32];
      snprintf(expected, sizeof expected, "failed at %d", (int)at);
      EXPECT(tw_parallel_for(visit, &j, 64, threads) == 100);
      EXPECT(tw_last_code() == 100 && has_text(expected));
      EXPECT(covers_once(64, threads)); /* the pool is as good as new */
    }
  }
}

static void *call_repeatedly(void *good) {
  for (int round = 0; round < 60; ++round) {
    if (!covers_once(1 + round * 13 % 257, 1 + round % 5)) atomic_store((atomic_bool *)good, false);
  }
  return NULL;
}

static void test_many_callers_at_once(void) {
  enum { CALLERS = 24 }; /* more than there are slots */
  pthread_t callers[CALLERS];
  atomic_bool good = true;
  for (int i = 0; i < CALLERS; ++i) pthread_create(&callers[i], NULL, call_repeatedly, &good);
  for (int i = 0; i < CALLERS; ++i) pthread_join(callers[i], NULL);
  EXPECT(atomic_load(&good));
}

static void test_workers_that_sleep_wake_again(void) {
  for (int round = 0; round < 20; ++round) {
    EXPECT(covers_once(1000, 3));
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000}, NULL);
  }
}

/* Both threads of a region: each says where it runs, and waits for the other for a while. */

typedef struct {
  pthread_t caller;
  atomic_int arrived, callers_core, workers_core;
} meeting;

static int32_t meet(void *env, int64_t begin, int64_t end) {
  meeting *m = env;
  bool is_caller = pthread_equal(pthread_self(), m->caller);
  atomic_store(is_caller ? &m->callers_core : &m->workers_core, sched_getcpu());
  atomic_fetch_add(&m->arrived, (int)(end - begin));
  for (int step = 0; step < 1000 && atomic_load(&m->arrived) < 2; ++step) {
    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
  }
  return TW_OK;
}

static void pin(pthread_t thread, int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  pthread_setaffinity_np(thread, sizeof one, &one);
}

static int32_t pin_worker(void *env, int64_t begin, int64_t end) {
  meeting *m = env;
  if (!pthread_equal(pthread_self(), m->caller)) pin(pthread_self(), m->callers_core);
  return meet(m, begin, end);
}

static void *spin(void *ending) {
  while (!atomic_load((atomic_bool *)ending)) continue;
  return NULL;
}

static void test_a_worker_that_wakes_on_its_callers_core_goes_elsewhere(void) {
  enum { CORES = 2, ROUNDS = 20 };
  cpu_set_t usable, few;
  EXPECT(sched_getaffinity(0, sizeof usable, &usable) == 0);
  CPU_ZERO(&few);
  pthread_t spinning[CORES];
  atomic_bool ending = false;
  int count = 0;
  for (int core = 0; core < CPU_SETSIZE && count < CORES; ++core) {
    if (!CPU_ISSET(core, &usable)) continue;
    CPU_SET(core, &few); /* none of these is idle */
    EXPECT(pthread_create(&spinning[count], NULL, spin, &ending) == 0);
    pin(spinning[count++], core);
  }
  tw_shutdown(); /* new workers inherit what the caller may use */
  sched_setaffinity(0, sizeof few, &few);

  int together = 0, helped = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    meeting m = {.caller = pthread_self(), .callers_core = -1, .workers_core = -2};
    EXPECT(tw_parallel_for(meet, &m, 2, 2) == TW_OK);
    together += m.callers_core == m.workers_core;
    helped += m.workers_core >= 0;
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000}, NULL); /* the worker falls asleep */
    if (m.workers_core >= 0) pin(pthread_self(), m.workers_core);
  }
  EXPECT(count < CORES || (together < ROUNDS / 2 && helped > 0));

  atomic_store(&ending, true);
  for (int k = 0; k < count; ++k) pthread_join(spinning[k], NULL);
  sched_setaffinity(0, sizeof usable, &usable);
  tw_shutdown();
}

static void test_a_worker_that_others_pin_to_its_callers_core_stays(void) {
  cpu_set_t usable;
  EXPECT(sched_getaffinity(0, sizeof usable, &usable) == 0);
  EXPECT(covers_once(100, 2)); /* the worker starts with all of them */
  int core = sched_getcpu();
  pin(pthread_self(), core);
  int helped = 0;
  for (int round = 0; round < 10; ++round) {
    meeting m = {.caller = pthread_self(), .callers_core = core, .workers_core = -2};
    EXPECT(tw_parallel_for(round ? meet : pin_worker, &m, 2, 2) == TW_OK);
    EXPECT(round == 0 || m.workers_core == core || m.workers_core == -2);
    helped += round > 0 && m.workers_core == core;
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000}, NULL);
  }
  EXPECT(helped > 0);
  sched_setaffinity(0, sizeof usable, &usable);
  tw_shutdown();
}

static void test_shutdown_ends_workers_and_the_next_region_starts_new_ones(void) {
  for (int round = 0; round < 10; ++round) {
    EXPECT(covers_once(500, 4));
    tw_shutdown();
  }
  EXPECT(covers_once(500, 4));
}

static void *shut_down(void *unused) {
  tw_shutdown();
  return unused;
}

static void test_several_threads_may_shut_down_at_once(void) {
  for (int round = 0; round < 300; ++round) {
    pthread_t threads[4];
    EXPECT(covers_once(20, 3));
    for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, shut_down, NULL);
    for (int i = 0; i < 4; ++i) EXPECT(covers_once(20, 3)); /* starts workers meanwhile */
    for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  }
}

static void test_forked_child_has_a_working_pool(void) {
  EXPECT(covers_once(1000, 3));
  for (int round = 0; round < 5; ++round) {
    pid_t child = fork();
    if (child == 0) _exit(covers_once(1000, 3) && covers_once(100, 2) ? 0 : 1);
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(covers_once(1000, 3));
  }
}

static void test_default_thread_count_can_be_set(void) {
  int32_t machine = tw_threads();
  EXPECT(machine >= 1);
  tw_set_threads(5);
  EXPECT(tw_threads() == 5);
  EXPECT(tw_set_own_threads(3) == 0);
  EXPECT(tw_threads() == 3);
  EXPECT(tw_set_own_threads(0) == 3);
  EXPECT(tw_threads() == 5);
  tw_set_threads(0);
  EXPECT(tw_threads() == machine);
}

/* ---- memory ---- */

static void test_memory_is_aligned_and_usable(void) {
  const int64_t sizes[] = {0, 1, 63, 64, 65, 4096, 5 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    char *memory = tw_alloc(sizes[i]);
    EXPECT(memory && (uintptr_t)memory % TW_ALIGN == 0);
    memset(memory, 1, (size_t)sizes[i]);
    tw_free(memory);
  }
}

static void test_impossible_sizes_are_refused(void) {
  EXPECT(!tw_alloc(-1) && tw_last_code() == TW_ERROR_NO_MEMORY);
  EXPECT(!tw_alloc(INT64_MAX) && has_text("9223372036854775807 bytes"));
  EXPECT(!tw_workspace_alloc(-1) && tw_last_code() == TW_ERROR_NO_MEMORY);
  EXPECT(!tw_workspace_alloc(INT64_MAX) && tw_last_code() == TW_ERROR_NO_MEMORY);
}

static void test_workspace_is_reused(void) {
  char *first = tw_workspace_alloc(10000);
  EXPECT((uintptr_t)first % TW_ALIGN == 0);
  memset(first, 1, 10000);
  tw_workspace_free(first);
  char *again = tw_workspace_alloc(9000);
  EXPECT(again == first);
  char *other = tw_workspace_alloc(9000);
  EXPECT(other != again);
  tw_workspace_free(again);
  tw_workspace_free(other);
  tw_workspace_free(NULL);
  tw_workspace_trim();
}

static void test_workspace_cache_is_bounded(void) {
  void *blocks[40];
  for (int i = 0; i < 40; ++i) blocks[i] = tw_workspace_alloc(100 + i);
  for (int i = 0; i < 40; ++i) tw_workspace_free(blocks[i]);
  tw_workspace_trim();
}

static void *free_elsewhere(void *memory) {
  tw_workspace_free(memory);
  return NULL;
}

static void test_another_thread_may_free_a_workspace(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, free_elsewhere, tw_workspace_alloc(5000));
  pthread_join(thread, NULL);
}

/* ---- argument checks ---- */

static const int64_t SHAPE_A[] = {TW_DIM_SYMBOL(0), TW_DIM_SYMBOL(1)};
static const int64_t SHAPE_B[] = {TW_DIM_SYMBOL(1), 4};
static const int64_t SHAPE_C[] = {TW_DIM_SYMBOL(0), TW_DIM_ANY};
static const char *const SYMBOLS[] = {"n", "k"};
#define F32 {kDLFloat, 32, 1}
static const tw_param PARAMS[] = {
    {"A", SHAPE_A, 2, F32, kDLCPU, 0, 0, 0},
    {"B", SHAPE_B, 2, F32, kDLCPU, TW_PARAM_STRIDED, 0, 0},
    {"C", SHAPE_C, 2, F32, kDLCPU, TW_PARAM_WRITABLE, 0, 0},
};
static const tw_signature MATMUL = {"matmul", PARAMS, SYMBOLS, 3, 2};

typedef struct {
  _Alignas(64) float data[3][64];
  int64_t shape[3][2], strides[3][2], symbols[2];
  DLTensor tensors[3];
  const DLTensor *args[3];
} call;

static void prepare(call *c) {
  const int64_t shapes[3][2] = {{2, 3}, {3, 4}, {2, 4}};
  memset(c, 0, sizeof *c);
  for (int i = 0; i < 3; ++i) {
    for (int axis = 0; axis < 2; ++axis) c->shape[i][axis] = shapes[i][axis];
    c->strides[i][0] = shapes[i][1];
    c->strides[i][1] = 1;
    c->tensors[i] = (DLTensor){c->data[i], {kDLCPU, 0}, 2, F32, c->shape[i], c->strides[i], 0};
    c->args[i] = &c->tensors[i];
  }
}

static int32_t check(call *c) { return tw_check_args(&MATMUL, c->args, 3, c->symbols); }

static void test_good_arguments_give_the_symbols(void) {
  call c;
  prepare(&c);
  EXPECT(check(&c) == TW_OK);
  EXPECT(c.symbols[0] == 2 && c.symbols[1] == 3);
  for (int i = 0; i < 3; ++i) c.tensors[i].strides = NULL;
  EXPECT(check(&c) == TW_OK);
}

#define REFUSED(change, code, text)                                                     \
  do {                                                                                  \
    call c;                                                                             \
    prepare(&c);                                                                        \
    change;                                                                             \
    EXPECT(check(&c) == code);                                                          \
    EXPECT(tw_last_code() == code);                                                     \
    EXPECT(strcmp(tw_last_error(), text) == 0);                                         \
    if (strcmp(tw_last_error(), text)) fprintf(stderr, "  got: %s\n", tw_last_error()); \
  } while (0)

static void test_bad_arguments_are_refused_by_name(void) {
  REFUSED(c.tensors[1].dtype.bits = 64, TW_ERROR_DTYPE,
          "matmul: argument B: the dtype is f64, expected f32");
  REFUSED(c.tensors[1].dtype.lanes = 4, TW_ERROR_DTYPE,
          "matmul: argument B: the dtype is f32x4, expected f32");
  REFUSED(c.tensors[0].dtype.code = 99, TW_ERROR_DTYPE,
          "matmul: argument A: the dtype is dtype(99, 32), expected f32");
  REFUSED(c.tensors[0].ndim = 1, TW_ERROR_RANK,
          "matmul: argument A: it has 1 dimensions, expected 2");
  REFUSED(c.tensors[0].device.device_type = kDLCUDA, TW_ERROR_DEVICE,
          "matmul: argument A: it is on a device of DLPack type 2, expected type 1 (the CPU)");
  REFUSED(c.shape[1][0] = 7, TW_ERROR_SHAPE,
          "matmul: argument B: dimension 0 is 7, expected k = 3");
  REFUSED(c.shape[1][1] = 5, TW_ERROR_SHAPE, "matmul: argument B: dimension 1 is 5, expected 4");
  REFUSED(c.shape[2][1] = -1, TW_ERROR_SHAPE, "matmul: argument C: dimension 1 is negative: -1");
  REFUSED(c.shape[2][1] = INT64_MAX, TW_ERROR_SHAPE,
          "matmul: argument C: more elements than memory: dimension 1 is 9223372036854775807");
  REFUSED(c.strides[0][0] = 4, TW_ERROR_STRIDES,
          "matmul: argument A: it is not contiguous: dimension 0 has stride 4, expected 3");
  REFUSED(c.strides[1][0] = INT64_MAX, TW_ERROR_STRIDES,
          "matmul: argument B: dimension 0 steps out of memory: stride 9223372036854775807");
  REFUSED(c.tensors[0].data = NULL, TW_ERROR_NO_ARRAY, "matmul: argument A: it has no data");
  REFUSED(c.args[2] = NULL, TW_ERROR_NO_ARRAY, "matmul: argument C: it is NULL");
  REFUSED(c.tensors[2].data = c.data[0], TW_ERROR_OVERLAP,
          "matmul: argument C: it shares memory with argument A");
  call c;
  prepare(&c);
  EXPECT(tw_check_args(&MATMUL, c.args, 2, c.symbols) == TW_ERROR_ARGUMENTS);
  EXPECT(has_text("matmul: it takes 3 arguments, got 2"));
  c.tensors[0].byte_offset = 2;
  EXPECT(check(&c) == TW_ERROR_ALIGNMENT && has_text("is not a multiple of 4 bytes"));
}

static void test_any_strides_will_do_where_the_parameter_says_so(void) {
  call c;
  prepare(&c);
  c.strides[1][0] = 1, c.strides[1][1] = 3; /* transposed */
  EXPECT(check(&c) == TW_OK);
  c.strides[1][0] = -4, c.strides[1][1] = -1; /* both axes reversed */
  c.tensors[1].data = c.data[1] + 11;
  EXPECT(check(&c) == TW_OK);
  c.tensors[1].data = c.data[2] + 18; /* reaches back to element 7 of C's row */
  EXPECT(check(&c) == TW_ERROR_OVERLAP);
}

static void test_empty_tensors_need_no_memory(void) {
  call c;
  prepare(&c);
  c.shape[0][0] = c.shape[2][0] = 0;
  c.tensors[0].data = c.tensors[2].data = NULL;
  c.strides[0][0] = 77;
  EXPECT(check(&c) == TW_OK);
  EXPECT(c.symbols[0] == 0);
}

static void test_stride_of_a_single_element_axis_is_ignored(void) {
  call c;
  prepare(&c);
  c.shape[0][0] = c.shape[2][0] = 1;
  c.strides[0][0] = c.strides[2][0] = 12345;
  EXPECT(check(&c) == TW_OK);
}

/* ---- profiler ---- */

static int32_t profiled(void *env, int64_t begin, int64_t end) {
  (void)env;
  for (int64_t i = begin; i < end; ++i) tw_profile_end("inner", tw_profile_begin(), i, 8);
  return TW_OK;
}

static int32_t slow_task(void *env, int64_t begin, int64_t end) {
  (void)env;
  volatile int64_t sum = 0;
  for (int64_t i = begin * 2000; i < end * 2000; ++i) sum += i;
  return TW_OK;
}

static void test_profiler_keeps_what_it_can_and_counts_the_rest(void) {
  tw_profile_event events[64];
  int64_t lost = -1;
  EXPECT(tw_profile_read(events, 64, &lost) == 0 && lost == 0);
  EXPECT(tw_profile_begin() == 0);

  EXPECT(tw_profile_start(16) == TW_OK);
  int64_t begin = tw_profile_begin();
  tw_profile_end("scale", begin, 100, 200);
  EXPECT(tw_profile_read(events, 64, &lost) == 1 && lost == 0);
  EXPECT(strcmp(events[0].kernel, "scale") == 0 && events[0].begin_ns == begin);
  EXPECT(events[0].end_ns >= begin && events[0].flops == 100 && events[0].size_bytes == 200);

  EXPECT(tw_parallel_for(profiled, NULL, 1000, 4) == TW_OK);
  int64_t kept = tw_profile_read(events, 64, &lost);
  EXPECT(kept <= 16 && kept + lost == 1001);
  EXPECT(tw_profile_start(64) == TW_OK);
  tw_profile_shares(1);
  tw_profile_end("whole", tw_profile_begin(), 0, 0);
  for (int i = 0; i < 8; ++i) EXPECT(tw_parallel_for(slow_task, NULL, 64, 4) == TW_OK);
  kept = tw_profile_read(events, 64, &lost);
  EXPECT(kept >= 1 && lost == 0 && strcmp(events[0].kernel, "whole") == 0);
  for (int64_t i = 1; i < kept; ++i) {
    EXPECT(events[i].kernel[0] == 0 && events[i].thread != events[0].thread);
    EXPECT(events[i].end_ns >= events[i].begin_ns);
  }
  tw_profile_shares(0);

  EXPECT(tw_profile_start(64) == TW_OK); /* forgets */
  EXPECT(tw_profile_read(events, 64, &lost) == 0 && lost == 0);
  tw_profile_stop();
  tw_profile_end("late", tw_profile_begin(), 0, 0);
  EXPECT(tw_profile_read(events, 64, &lost) == 0);
}

/* ---- models ---- */

/* A model that doubles a vector through its arena, as compiled code would. */
static int32_t double_main(tw_call *call, const DLTensor *const *inputs, int32_t n_inputs) {
  (void)n_inputs;
  int64_t n = inputs[0]->shape[0], size = n * (int64_t)sizeof(float);
  const float *x = inputs[0]->data;
  int32_t span[4] = {0, 1, 1, 2};
  int64_t sizes[2] = {size, size};
  const int64_t *offsets = tw_call_plan(call, 2, sizes, span);
  if (!offsets) return TW_ERROR_NO_MEMORY;
  float *a = (float *)(tw_call_arena(call, 0) + offsets[0]);
  float *b = (float *)(tw_call_arena(call, 0) + offsets[1]);
  float *late = tw_call_late(call, size);
  float *y = call->output(call, 0, 1, &n);
  if (!late || !y) return TW_ERROR_NO_MEMORY;
  for (int64_t i = 0; i < n; ++i) a[i] = x[i];
  for (int64_t i = 0; i < n; ++i) late[i] = b[i] = a[i];
  for (int64_t i = 0; i < n; ++i) y[i] = b[i] + late[i] + *(const float *)call->constants[0];
  return TW_OK;
}

static void test_plans_larger_than_memory_are_refused(void) {
  enum { COUNT = 9 };
  int64_t sizes[COUNT];
  int32_t spans[2 * COUNT];
  tw_model *model = tw_model_new(NULL);
  tw_call *call = tw_call_begin(model);
  const int64_t too_large[] = {INT64_MAX / 4 - 1, INT64_C(1) << 46, INT64_MAX, -1};
  for (size_t k = 0; k < sizeof too_large / sizeof *too_large; ++k) {
    for (int i = 0; i < COUNT; ++i) sizes[i] = too_large[k], spans[2 * i] = spans[2 * i + 1] = i;
    tw_error(TW_OK, "");
    EXPECT(tw_call_plan(call, COUNT, sizes, spans) == NULL);
    EXPECT(tw_last_code() == TW_ERROR_NO_MEMORY && has_text("of the model needs"));
  }
  tw_call_end(model, call);
  tw_model_free(model);
}

static const float zero = 0;
static const void *const constants[1] = {&zero};
static void *instance;
static const int64_t vector[1] = {TW_DIM_SYMBOL(0)};
static const char *const size_names[1] = {"n"};
static const tw_param model_params[2] = {
    {"x", vector, 1, {kDLFloat, 32, 1}, kDLCPU, 0, 0, 0},
    {"y", vector, 1, {kDLFloat, 32, 1}, kDLCPU, TW_PARAM_WRITABLE, 0, 0},
};
static const tw_signature model_signature = {"twice", model_params, size_names, 2, 1};
static const tw_entry twice = {&model_signature, double_main, constants, &instance, 1, NULL};

enum { LONGEST = 3000 };

static int32_t run_twice(float *x, float *y, int64_t n, int64_t n_out) {
  int64_t in[1] = {n}, out[1] = {n_out};
  DLTensor tx = {x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, in, NULL, 0}, ty = tx;
  ty.data = y, ty.shape = out;
  const DLTensor *args[2] = {&tx, &ty};
  return tw_run_model(&twice, args, 2);
}

static void *call_model(void *seed) {
  static _Thread_local float x[LONGEST], y[LONGEST];
  intptr_t wrong = 0;
  for (int round = 0; round < 40; ++round) {
    int64_t n = ((intptr_t)seed * 131 + round * 67) % LONGEST;
    for (int64_t i = 0; i < n; ++i) x[i] = (float)(i + round);
    wrong += run_twice(x, y, n, n) != TW_OK;
    for (int64_t i = 0; i < n; ++i) wrong += y[i] != 2 * x[i];
  }
  return (void *)wrong;
}

static void test_a_model_is_called_from_many_threads(void) {
  pthread_t threads[8];
  for (intptr_t i = 0; i < 8; ++i) pthread_create(&threads[i], NULL, call_model, (void *)i);
  for (int i = 0; i < 8; ++i) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    EXPECT(wrong == NULL);
  }
  EXPECT(instance != NULL && tw_model_bytes(instance) > 0);
}

static void test_a_models_outputs_are_checked(void) {
  float x[4] = {1, 2, 3, 4}, y[4];
  EXPECT(run_twice(x, y, 4, 4) == TW_OK && y[3] == 8);
  EXPECT(run_twice(x, y, 4, 3) == TW_ERROR_SHAPE);
  EXPECT(strstr(tw_last_error(), "twice: argument y: dimension 0 is 3, expected n = 4"));
  EXPECT(run_twice(x, x + 1, 3, 3) == TW_ERROR_OVERLAP);
  EXPECT(run_twice(NULL, NULL, 0, 0) == TW_OK);
}

/* A model whose part counts what is above a limit and gives it back, as callbacks see fit. */
static int32_t part_main(tw_call *call, const DLTensor *const *inputs, int32_t n_inputs) {
  static const tw_signature takes = {"count", model_params, size_names, 1, 1};
  static const tw_signature gives = {"count", model_params + 1, size_names, 1, 1};
  (void)n_inputs;
  void *in[1] = {inputs[0]->data}, *out[1];
  int64_t limit = 2, told = -1;
  int32_t code = tw_call_foreign(call, 3, &takes, in, inputs[0]->shape, &limit, &told);
  if (code != TW_OK) return code;
  out[0] = call->output(call, 0, 1, &told);
  return out[0] ? tw_call_fetch(call, 3, &gives, out, &told) : tw_last_code();
}

typedef struct {
  int32_t fail_run, fail_fetch;
  int64_t count;
  float kept[8];
} part;

static int32_t run_part(void *context, int32_t number, const DLTensor *const *inputs, int32_t n,
                        const int64_t *sizes, int64_t *told) {
  part *p = context;
  EXPECT(number == 3 && n == 1 && inputs[0]->ndim == 1 && inputs[0]->dtype.bits == 32);
  EXPECT(inputs[0]->strides == NULL && inputs[0]->device.device_type == kDLCPU);
  p->count = 0;
  for (int64_t i = 0; i < inputs[0]->shape[0]; ++i) {
    float x = ((const float *)inputs[0]->data)[i];
    if (x > (float)sizes[0]) p->kept[p->count++] = x;
  }
  *told = p->count;
  return p->fail_run;
}

static int32_t fetch_part(void *context, int32_t number, const DLTensor *const *outputs,
                          int32_t n) {
  part *p = context;
  EXPECT(number == 3 && n == 1 && outputs[0]->shape[0] == p->count);
  memcpy(outputs[0]->data, p->kept, (size_t)p->count * sizeof *p->kept);
  return p->fail_fetch;
}

static void test_foreign_parts_run_by_callbacks(void) {
  static const int64_t any[1] = {TW_DIM_ANY};
  static const tw_param params[2] = {
      {"x", vector, 1, {kDLFloat, 32, 1}, kDLCPU, 0, 0, 0},
      {"y", any, 1, {kDLFloat, 32, 1}, kDLCPU, TW_PARAM_WRITABLE, 0, 0},
  };
  static const tw_signature signature = {"above", params, size_names, 2, 1};
  static void *above;
  const tw_entry entry = {&signature, part_main, constants, &above, 1, NULL};
  float x[4] = {1, 5, 2, 3}, y[2] = {0, 0};
  int64_t in[1] = {4}, out[1] = {2};
  DLTensor tx = {x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, in, NULL, 0}, ty = tx;
  ty.data = y, ty.shape = out;
  const DLTensor *args[2] = {&tx, &ty};
  EXPECT(tw_run_model(&entry, args, 2) == TW_ERROR_FOREIGN);
  EXPECT(has_text("count has no native code, and no callback is registered"));
  part p = {0};
  tw_foreign mine = {run_part, fetch_part, &p};
  EXPECT(tw_set_foreign(&entry, &mine) == TW_OK);
  EXPECT(tw_run_model(&entry, args, 2) == TW_OK && y[0] == 5 && y[1] == 3);
  p.fail_run = 42;
  EXPECT(tw_run_model(&entry, args, 2) == TW_ERROR_FOREIGN && has_text("code 42"));
  p = (part){.fail_fetch = 43};
  EXPECT(tw_run_model(&entry, args, 2) == TW_ERROR_FOREIGN && has_text("code 43"));
  EXPECT(tw_set_foreign(&entry, NULL) == TW_OK);
  EXPECT(tw_run_model(&entry, args, 2) == TW_ERROR_FOREIGN && has_text("no callback"));
  tw_model_free(above);
}

/* Counts products below the least normal number that are kept, on every thread of a region. */
static int32_t count_subnormals(void *env, int64_t begin, int64_t end) {
  _Atomic int64_t *kept = env;
  for (int64_t i = begin; i < end; ++i) {
    volatile float small = 1e-30f, product = small * 1e-10f;
    atomic_fetch_add(kept, product != 0);
  }
  return TW_OK;
}

static int64_t kept_subnormals(void) {
  _Atomic int64_t kept = 0;
  tw_parallel_for(count_subnormals, &kept, SIZE, 4);
  return kept;
}

static int64_t kept_inside, kept_by_callback;

static int32_t run_underflow(void *context, int32_t number, const DLTensor *const *inputs,
                             int32_t n, const int64_t *sizes, int64_t *told) {
  (void)context, (void)number, (void)inputs, (void)n, (void)sizes;
  kept_by_callback = kept_subnormals();
  *told = 1;
  return TW_OK;
}

static int32_t fetch_nothing(void *context, int32_t number, const DLTensor *const *outputs,
                             int32_t n) {
  (void)context, (void)number, (void)outputs, (void)n;
  return TW_OK;
}

static int32_t underflow_main(tw_call *call, const DLTensor *const *inputs, int32_t n_inputs) {
  int32_t code = part_main(call, inputs, n_inputs);
  kept_inside = kept_subnormals();
  return code;
}

static void test_a_model_flushes_subnormals_and_its_caller_keeps_them(void) {
#if defined(__x86_64__)
  const int64_t kept_of_a_model = 0;
#else
  const int64_t kept_of_a_model = SIZE;
#endif
  static void *underflow;
  const tw_entry entry = {&model_signature, underflow_main, constants, &underflow, 1, NULL};
  tw_foreign mine = {run_underflow, fetch_nothing, NULL};
  float x = 1, y = 0;
  int64_t one[1] = {1};
  DLTensor tx = {&x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, one, NULL, 0}, ty = tx;
  ty.data = &y;
  const DLTensor *args[2] = {&tx, &ty};
  EXPECT(kept_subnormals() == SIZE);
  EXPECT(tw_set_foreign(&entry, &mine) == TW_OK);
  EXPECT(tw_run_model(&entry, args, 2) == TW_OK);
  EXPECT(kept_inside == kept_of_a_model && kept_by_callback == SIZE);
  EXPECT(kept_subnormals() == SIZE);
  tw_model_free(underflow);
}

static void test_a_runtime_tells_its_version(void) {
  EXPECT(tw_this_runtime.version == TW_RUNTIME_VERSION);
  EXPECT(tw_this_runtime.size_bytes == (int32_t)sizeof tw_this_runtime);
  tw_model_free(instance);
  instance = NULL;
}

/* ---- all of them ---- */

#define TEST(name) {#name, name}
static const struct {
  const char *name;
  void (*run)(void);
} TESTS[] = {
    TEST(test_region_visits_every_index_once),
    TEST(test_empty_and_negative_counts_do_nothing),
    TEST(test_thread_count_may_change_from_region_to_region),
    TEST(test_tasks_that_take_turns_turn_round),
    TEST(test_nested_regions_finish),
    TEST(test_error_reaches_the_caller_with_its_message),
    TEST(test_many_callers_at_once),
    TEST(test_workers_that_sleep_wake_again),
    TEST(test_a_worker_that_wakes_on_its_callers_core_goes_elsewhere),
    TEST(test_a_worker_that_others_pin_to_its_callers_core_stays),
    TEST(test_shutdown_ends_workers_and_the_next_region_starts_new_ones),
    TEST(test_several_threads_may_shut_down_at_once),
    TEST(test_forked_child_has_a_working_pool),
    TEST(test_default_thread_count_can_be_set),
    TEST(test_memory_is_aligned_and_usable),
    TEST(test_impossible_sizes_are_refused),
    TEST(test_workspace_is_reused),
    TEST(test_workspace_cache_is_bounded),
    TEST(test_another_thread_may_free_a_workspace),
    TEST(test_good_arguments_give_the_symbols),
    TEST(test_bad_arguments_are_refused_by_name),
    TEST(test_any_strides_will_do_where_the_parameter_says_so),
    TEST(test_empty_tensors_need_no_memory),
    TEST(test_stride_of_a_single_element_axis_is_ignored),
    TEST(test_profiler_keeps_what_it_can_and_counts_the_rest),
    TEST(test_a_model_is_called_from_many_threads),
    TEST(test_a_models_outputs_are_checked),
    TEST(test_plans_larger_than_memory_are_refused),
    TEST(test_foreign_parts_run_by_callbacks),
    TEST(test_a_model_flushes_subnormals_and_its_caller_keeps_them),
    TEST(test_a_runtime_tells_its_version),
};

int main(void) {
  int passed = 0, failed = 0;
  for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; ++i) {
    failures = 0;
    TESTS[i].run();
    if (failures) fprintf(stderr, "FAILED %s\n", TESTS[i].name);
    failures ? failed++ : passed++;
  }
  tw_shutdown();
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
