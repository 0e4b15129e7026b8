/* Costs of the C runtime itself, one per line: name and nanoseconds (the median of many). */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tilewright.h"

enum { SAMPLES = 2001, CALLS = 100 };

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static void measure_some(const char *name, void (*call)(void), int count, int calls) {
  static double samples[SAMPLES];
  for (int i = 0; i < calls; ++i) call();
  for (int i = 0; i < count; ++i) {
    int64_t begin = now_ns();
    for (int k = 0; k < calls; ++k) call();
    samples[i] = (double)(now_ns() - begin) / calls;
  }
  qsort(samples, count, sizeof *samples, by_value);
  printf("%s %.1f\n", name, samples[count / 2]);
}

static void measure(const char *name, void (*call)(void)) {
  measure_some(name, call, SAMPLES, CALLS);
}

static int32_t nothing(void *env, int64_t begin, int64_t end) {
  (void)env, (void)begin, (void)end;
  return TW_OK;
}

static void empty_region(void) { tw_parallel_for(nothing, NULL, 64, 2); }

/* A region that no thread can do alone: each waits until the other is there, for 1 ms at most. */

static atomic_int arrived;

static int32_t meet(void *env, int64_t begin, int64_t end) {
  (void)env;
  int64_t until = now_ns() + 1000000;
  atomic_fetch_add(&arrived, (int)(end - begin));
  while (atomic_load(&arrived) < 2)
    if (now_ns() > until) break;
  return TW_OK;
}

static void both_threads(void) {
  atomic_store(&arrived, 0);
  tw_parallel_for(meet, NULL, 2, 2);
}

/* A function with three arguments that does nothing but what every compiled function does. */

static const int64_t SHAPE_A[] = {TW_DIM_SYMBOL(0), TW_DIM_SYMBOL(1)};
static const int64_t SHAPE_B[] = {TW_DIM_SYMBOL(1), TW_DIM_SYMBOL(2)};
static const int64_t SHAPE_C[] = {TW_DIM_SYMBOL(0), TW_DIM_SYMBOL(2)};
static const char *const SYMBOLS[] = {"n", "k", "m"};
#define F32 {kDLFloat, 32, 1}
static const tw_param PARAMS[] = {
    {"A", SHAPE_A, 2, F32, kDLCPU, 0, 0, 0},
    {"B", SHAPE_B, 2, F32, kDLCPU, 0, 0, 0},
    {"C", SHAPE_C, 2, F32, kDLCPU, TW_PARAM_WRITABLE, 0, 0},
};
static const tw_signature MATMUL = {"matmul", PARAMS, SYMBOLS, 3, 3};

static int32_t matmul(const DLTensor *const *args, int32_t n_args) {
  int64_t symbols[3];
  return tw_check_args(&MATMUL, args, n_args, symbols);
}

static void checked_call(void) {
  static float data[3][64];
  static int64_t shape[] = {8, 8}, strides[] = {8, 1};
  static tw_kernel volatile kernel = matmul; /* volatile: a real, indirect call */
  DLTensor tensors[3];
  const DLTensor *args[3];
  for (int i = 0; i < 3; ++i) {
    tensors[i] = (DLTensor){data[i], {kDLCPU, 0}, 2, F32, shape, strides, 0};
    args[i] = &tensors[i];
  }
  if (kernel(args, 3) != TW_OK) abort();
}

static void workspace(void) { tw_workspace_free(tw_workspace_alloc(100000)); }

static void profiler_off(void) { tw_profile_end("kernel", tw_profile_begin(), 0, 0); }

int main(void) {
  measure("empty_region", empty_region);
  measure_some("both_threads", both_threads, 401, 20); /* few: it is slow where cores are busy */
  measure("checked_call", checked_call);
  measure("workspace", workspace);
  measure("profiler_off", profiler_off);
  return 0;
}
