/* The driver: buffers with host and device copies, streams, and their outcomes. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "accel.h"

enum { PAGE = 4096, BUFFERS = 4096 };

typedef struct {
  int64_t bytes;
  uint8_t *host, *device, *written;
  uint64_t address;
} buffer;

struct tw_accel {
  tw_accel_config config;
  const tw_accel_backend_api *backend;
  void *library, *state;
  buffer buffers[BUFFERS];
  int32_t count; /* of buffers, at most at one time */
  uint64_t next_address;
  tw_accel_job job;
  uint8_t *words;
  int64_t *times; /* begins, then ends */
  bool is_submitted;
  tw_accel_kernels kernels;
};

static const tw_accel_backend_api *backend_of(tw_accel *d, const char *name) {
  if (!strcmp(name, "functional")) return &tw_accel_functional;
  if (!strcmp(name, "cycle")) return &tw_accel_cycle;
  if (!strcmp(name, "timing")) return &tw_accel_timing;
  if (!strcmp(name, "verify")) return &tw_accel_verify;
  d->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!d->library) {
    tw_errorf(TW_ACCEL_USAGE, "cannot load the accelerator %s: %s", name, dlerror());
    return NULL;
  }
  const tw_accel_backend_api *found = dlsym(d->library, "tw_accel_backend");
  if (!found || found->version != TW_ACCEL_VERSION) {
    tw_errorf(TW_ACCEL_USAGE, "%s is no accelerator of this version", name);
    return NULL;
  }
  return found;
}

int32_t tw_accel_open(const int32_t *words, int64_t count, const char *backend, tw_accel **device) {
  *device = NULL;
  if (count * (int64_t)sizeof *words != (int64_t)sizeof(tw_accel_config) ||
      words[0] != TW_ACCEL_VERSION) {
    return tw_error(TW_ACCEL_USAGE, "the description of the accelerator is of another version");
  }
  tw_accel *d = calloc(1, sizeof *d);
  if (!d) return tw_error(TW_ERROR_NO_MEMORY, "not enough memory for an accelerator");
  memcpy(&d->config, words, sizeof d->config);
  d->next_address = PAGE;
  d->job.seed = TW_ACCEL_NO_STALLS;
  d->backend = backend_of(d, backend);
  if (d->backend) {
    d->state = d->backend->open(&d->config);
    if (!d->state) tw_error(TW_ERROR_NO_MEMORY, "the accelerator cannot be opened");
  }
  if (!d->state) {
    int32_t code = tw_last_code();
    tw_accel_close(d);
    return code;
  }
  *device = d;
  return TW_OK;
}

static void drop(buffer *b) {
  free(b->host), free(b->device), free(b->written);
  memset(b, 0, sizeof *b);
}

void tw_accel_close(tw_accel *d) {
  if (!d) return;
  if (d->state) d->backend->close(d->state);
  for (int32_t i = 0; i < d->count; ++i) drop(&d->buffers[i]);
  free(d->words), free(d->times);
  if (d->library) dlclose(d->library);
  free(d);
}

void tw_accel_use(tw_accel *d, const tw_accel_kernels *kernels) { d->kernels = *kernels; }

int32_t tw_accel_alloc(tw_accel *d, int64_t bytes, int32_t *number, void **host) {
  int32_t at = 0;
  while (at < d->count && d->buffers[at].host) ++at;
  if (at == BUFFERS || bytes < 0) {
    return tw_errorf(TW_ACCEL_USAGE, "no buffer of %lld bytes is left", (long long)bytes);
  }
  size_t size = (size_t)bytes + !bytes;
  buffer b = {bytes, calloc(size, 1), calloc(size, 1), calloc(size, 1), d->next_address};
  if (!b.host || !b.device || !b.written) {
    drop(&b);
    return tw_errorf(TW_ERROR_NO_MEMORY, "not enough memory for %lld bytes", (long long)bytes);
  }
  d->next_address += ((uint64_t)bytes + 2 * PAGE - 1) / PAGE * PAGE; /* a page between buffers */
  d->buffers[at] = b;
  if (at == d->count) ++d->count;
  *number = at;
  *host = b.host;
  return TW_OK;
}

static buffer *buffer_at(tw_accel *d, int32_t number, int64_t at, int64_t bytes) {
  if (number < 0 || number >= d->count || !d->buffers[number].host) {
    tw_errorf(TW_ACCEL_USAGE, "there is no buffer %d", number);
    return NULL;
  }
  buffer *b = &d->buffers[number];
  if (at < 0 || bytes < 0 || at > b->bytes - bytes) {
    tw_errorf(TW_ACCEL_USAGE, "bytes %lld to %lld of a buffer of %lld", (long long)at,
              (long long)(at + bytes), (long long)b->bytes);
    return NULL;
  }
  return b;
}

int32_t tw_accel_free(tw_accel *d, int32_t number) {
  buffer *b = buffer_at(d, number, 0, 0);
  if (!b) return tw_last_code();
  drop(b);
  return TW_OK;
}

int32_t tw_accel_flush(tw_accel *d, int32_t number, int64_t at, int64_t bytes) {
  buffer *b = buffer_at(d, number, at, bytes);
  if (!b) return tw_last_code();
  memcpy(b->device + at, b->host + at, (size_t)bytes);
  memset(b->written + at, 1, (size_t)bytes);
  return TW_OK;
}

int32_t tw_accel_invalidate(tw_accel *d, int32_t number, int64_t at, int64_t bytes) {
  buffer *b = buffer_at(d, number, at, bytes);
  if (!b) return tw_last_code();
  memcpy(b->host + at, b->device + at, (size_t)bytes);
  return TW_OK;
}

int32_t tw_accel_submit(tw_accel *d, const void *words, int64_t tasks, const int32_t *buffers,
                        int32_t count, uint32_t writable) {
  if (d->is_submitted) return tw_error(TW_ACCEL_USAGE, "wait for the stream that was submitted");
  if (tasks < 1 || count < 0 || count > TW_ACCEL_BASES) {
    return tw_errorf(TW_ACCEL_USAGE, "a stream of %lld tasks and %d buffers", (long long)tasks,
                     count);
  }
  int64_t seed = d->job.seed;
  memset(&d->job, 0, sizeof d->job);
  d->job.seed = seed;
  for (int32_t i = 0; i < count; ++i) {
    buffer *b = buffer_at(d, buffers[i], 0, 0);
    if (!b) return tw_last_code();
    d->job.buffer[i] =
        (tw_accel_buffer){b->address, b->bytes, b->device, b->written, writable >> i & 1};
  }
  size_t size = (size_t)tasks * (size_t)d->config.word_bytes;
  free(d->words), free(d->times);
  d->words = malloc(size);
  d->times = malloc(2 * (size_t)tasks * sizeof *d->times);
  if (!d->words || !d->times) return tw_error(TW_ERROR_NO_MEMORY, "not enough memory for a stream");
  memcpy(d->words, words, size);
  memset(d->times, 0xFF, 2 * (size_t)tasks * sizeof *d->times); /* -1 */
  d->job.words = d->words;
  d->job.tasks = tasks;
  d->job.buffers = count;
  d->job.begin = d->times;
  d->job.end = d->times + tasks;
  d->job.task = -1;
  d->job.kernels = d->kernels.gemm ? &d->kernels : NULL;
  d->is_submitted = true;
  return TW_OK;
}

int32_t tw_accel_wait(tw_accel *d, int64_t timeout_cycles) {
  if (!d->is_submitted) return tw_error(TW_ACCEL_USAGE, "no stream was submitted");
  d->is_submitted = false;
  d->job.timeout_cycles = timeout_cycles;
  d->backend->run(d->state, &d->job);
  return d->job.code == TW_OK ? TW_OK : tw_error(d->job.code, d->job.message);
}

int32_t tw_accel_counters(tw_accel *d, int64_t counters[TW_ACCEL_COUNTERS]) {
  memcpy(counters, d->job.counters, sizeof d->job.counters);
  return TW_OK;
}

int32_t tw_accel_times(tw_accel *d, const int64_t **begin, const int64_t **end, int64_t *tasks) {
  *begin = d->job.begin;
  *end = d->job.end;
  *tasks = d->job.tasks;
  return d->job.begin ? TW_OK : tw_error(TW_ACCEL_USAGE, "no stream has run");
}

void tw_accel_stalls(tw_accel *d, int64_t seed) { d->job.seed = seed; }

int32_t tw_accel_reset(tw_accel *d) {
  d->is_submitted = false;
  d->job.code = TW_OK;
  return TW_OK;
}

int32_t tw_accel_error(const tw_accel *d, int64_t *task, const char **message) {
  *task = d->job.task;
  *message = d->job.message;
  return d->job.code;
}
