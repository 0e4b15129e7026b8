/* The runtime for machines without threads: WebAssembly, microcontrollers.
 *
 * Together with error.c and check.c it is the complete runtime there. A parallel region is a call;
 * scratch memory comes from malloc; the profiler is always off.
 */
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

int32_t tw_parallel_for(tw_task task, void *env, int64_t count, int32_t threads) {
  (void)threads;
  return count > 0 ? task(env, 0, count) : TW_OK;
}

int32_t tw_parallel_alternating(tw_task task, void *env, int64_t count, int32_t threads) {
  return tw_parallel_for(task, env, count, threads);
}

int32_t tw_threads(void) { return 1; }

void tw_set_threads(int32_t threads) { (void)threads; }

int32_t tw_set_own_threads(int32_t threads) {
  (void)threads;
  return 0;
}

void tw_shutdown(void) {}

/* The address returned by malloc is stored just before the aligned one. */
void *tw_alloc(int64_t size_bytes) {
  const int64_t extra = TW_ALIGN + (int64_t)sizeof(void *);
  void *raw = NULL;
  if (size_bytes >= 0 && (uint64_t)size_bytes <= SIZE_MAX / 2) {
    raw = malloc((size_t)(size_bytes + extra));
  }
  if (!raw) {
    tw_error(TW_ERROR_NO_MEMORY, "cannot allocate scratch memory");
    return NULL;
  }
  uintptr_t first = (uintptr_t)raw + sizeof(void *);
  uintptr_t aligned = (first + TW_ALIGN - 1) / TW_ALIGN * TW_ALIGN;
  memcpy((void *)(aligned - sizeof(void *)), &raw, sizeof raw);
  return (void *)aligned;
}

void tw_free(void *memory) {
  void *raw;
  if (!memory) return;
  memcpy(&raw, (char *)memory - sizeof raw, sizeof raw);
  free(raw);
}

void *tw_workspace_alloc(int64_t size_bytes) { return tw_alloc(size_bytes); }

void tw_workspace_free(void *memory) { tw_free(memory); }

void tw_workspace_trim(void) {}

int64_t tw_profile_begin(void) { return 0; }

void tw_profile_end(const char *kernel, int64_t begin, int64_t flops, int64_t size_bytes) {
  (void)kernel, (void)begin, (void)flops, (void)size_bytes;
}

int32_t tw_request_tiles(void) {
  return tw_error(TW_ERROR_CHECK, "this machine has no AMX tile registers");
}
