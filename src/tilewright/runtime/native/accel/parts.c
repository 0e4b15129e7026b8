/* Parts of a saved model on an accelerator: `run` packs the inputs, runs the part's stream and
 * leaves its results on the device; `fetch` unpacks them. A device is opened by the first call that
 * needs one, and then kept for later calls: as many calls as there are threads may be in flight. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* The numbers of a part: a header, its buffers, its inputs, its outputs. */
typedef struct {
  int64_t config, config_words; /* offset of the description in the weights, and its length */
  int64_t stream, tasks;
  int64_t round; /* images or rows per round of the stream; 0: all sizes are static */
  int64_t buffers, inputs, outputs;
  int64_t from, to; /* the buffers of all inputs and of all outputs */
} head;

typedef struct {
  int64_t bytes, data; /* data: offset of its content in the weights; -1: none */
  int64_t is_writable, per_round, is_code;
} memory;

/* The source of each byte of a packed input, or of each byte of an output: an index on the other
 * side, or the complement of a constant. */
typedef struct {
  int64_t argument, offset; /* offset: in the buffer, in every round */
  int64_t indices, count;   /* 32-bit numbers in the weights */
} tensor;

typedef struct device {
  struct device *next;
  const tw_accel_program *program;
  const head *part;
  tw_accel *accel;
  int32_t buffer[TW_ACCEL_BASES];
  void *host[TW_ACCEL_BASES];
  int64_t rounds;
  uint8_t *words; /* the stream for the current number of rounds; NULL: as saved */
} device;

static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local device *ran; /* the device whose results this thread fetches next */

static const memory *memories_of(const head *part) { return (const memory *)(part + 1); }
static const tensor *tensors_of(const head *part) {
  return (const tensor *)(memories_of(part) + part->buffers);
}

static const head *part_at(const tw_accel_program *program, int32_t number) {
  const head *part = (const head *)program->numbers;
  for (; number > 0; --number) {
    part = (const head *)(tensors_of(part) + part->inputs + part->outputs);
  }
  return part;
}

/* ---- devices ------------------------------------------------------------------------------ */

static void drop(device *d) {
  tw_accel_close(d->accel);
  free(d->words);
  free(d);
}

static const tw_accel_config *config_of(const device *d) {
  return (const tw_accel_config *)(d->program->weights + d->part->config);
}

static device *open_device(const tw_accel_program *program, const head *part) {
  const char *backend = program->backend;
  if (*backend == '$' && !(backend = getenv(backend + 1))) {
    tw_errorf(TW_ACCEL_USAGE, "there is no library of an accelerator: set %s",
              program->backend + 1);
    return NULL;
  }
  device *d = calloc(1, sizeof *d);
  if (!d) {
    tw_error(TW_ERROR_NO_MEMORY, "not enough memory for an accelerator");
    return NULL;
  }
  d->program = program;
  d->part = part;
  d->rounds = 1;
  int32_t code =
      tw_accel_open((const int32_t *)config_of(d), part->config_words, backend, &d->accel);
  if (code == TW_OK && program->kernels) tw_accel_use(d->accel, program->kernels);
  const memory *m = memories_of(part);
  for (int64_t i = 0; i < part->buffers && code == TW_OK; ++i) {
    code = tw_accel_alloc(d->accel, m[i].bytes, &d->buffer[i], &d->host[i]);
    if (code != TW_OK || m[i].data < 0) continue;
    memcpy(d->host[i], program->weights + m[i].data, (size_t)m[i].bytes);
    code = tw_accel_flush(d->accel, d->buffer[i], 0, m[i].bytes);
  }
  if (code == TW_OK) return d;
  drop(d);
  return NULL;
}

static device *take(const tw_accel_program *program, const head *part) {
  pthread_mutex_lock(&waiting_lock);
  device **at = (device **)program->waiting;
  while (*at && (*at)->part != part) at = &(*at)->next;
  device *found = *at;
  if (found) *at = found->next;
  pthread_mutex_unlock(&waiting_lock);
  return found ? found : open_device(program, part);
}

static void give_back(device *d) {
  if (!d) return;
  if (!d->rounds) { /* it lacks its buffers */
    drop(d);
    return;
  }
  pthread_mutex_lock(&waiting_lock);
  device **first = (device **)d->program->waiting;
  d->next = *first;
  *first = d;
  pthread_mutex_unlock(&waiting_lock);
}

/* Prepare a device for a number of rounds: its buffers, and the stream. */
static int32_t set_rounds(device *d, int64_t rounds) {
  if (d->rounds == rounds) return TW_OK;
  const head *part = d->part;
  const memory *m = memories_of(part);
  const tw_accel_config *config = config_of(d);
  tw_accel_region regions[TW_ACCEL_BASES] = {0};
  int32_t code = TW_OK;
  for (int64_t i = 0; i < part->buffers && code == TW_OK; ++i) {
    const char *held = d->program->weights + m[i].data;
    regions[i] = (tw_accel_region){m[i].bytes, (int32_t)m[i].is_writable, (int32_t)m[i].per_round,
                                   m[i].is_code ? (const uint8_t *)held : NULL};
    if (!m[i].per_round) continue;
    code = tw_accel_free(d->accel, d->buffer[i]);
    if (code == TW_OK) {
      code = tw_accel_alloc(d->accel, m[i].bytes * rounds, &d->buffer[i], &d->host[i]);
    }
  }
  free(d->words);
  d->words = malloc((size_t)((part->tasks - 1) * rounds + 1) * (size_t)config->word_bytes);
  if (!d->words) code = tw_error(TW_ERROR_NO_MEMORY, "not enough memory for a stream");
  if (code == TW_OK) {
    code = tw_accel_make(config, (const uint8_t *)d->program->weights + part->stream, part->tasks,
                         rounds, regions, (int32_t)part->buffers, d->words);
  }
  d->rounds = code == TW_OK ? rounds : 0;
  return code;
}

/* ---- layouts ------------------------------------------------------------------------------ */

static int8_t *data_of(const DLTensor *given) { return (int8_t *)given->data + given->byte_offset; }

static int64_t bytes_of(const DLTensor *given) {
  int64_t bytes = 1;
  for (int32_t i = 0; i < given->ndim; ++i) bytes *= given->shape[i];
  return bytes;
}

/* Pack by rounds; the padding of the last one is 0. */
static void pack(const device *d, const tensor *t, const DLTensor *given) {
  const int32_t *indices = (const int32_t *)(d->program->weights + t->indices);
  int64_t left = bytes_of(given), rows = given->ndim ? given->shape[0] : 1;
  int64_t step = d->part->round && rows ? left / rows * d->part->round : left;
  const int8_t *from = data_of(given);
  int8_t *to = (int8_t *)d->host[d->part->from] + t->offset;
  int64_t size = memories_of(d->part)[d->part->from].bytes;
  for (int64_t round = 0; round < d->rounds; ++round, from += step, left -= step, to += size) {
    for (int64_t i = 0; i < t->count; ++i) {
      to[i] = indices[i] < 0 ? (int8_t)~indices[i] : indices[i] < left ? from[indices[i]] : 0;
    }
  }
}

static void unpack(const device *d, const tensor *t, const DLTensor *given) {
  const int32_t *indices = (const int32_t *)(d->program->weights + t->indices);
  int64_t left = bytes_of(given), size = memories_of(d->part)[d->part->to].bytes;
  const int8_t *from = (int8_t *)d->host[d->part->to] + t->offset;
  int8_t *to = data_of(given);
  for (int64_t round = 0; round < d->rounds; ++round, from += size, to += t->count) {
    for (int64_t i = 0; i < t->count && round * t->count + i < left; ++i) to[i] = from[indices[i]];
  }
}

/* ---- parts -------------------------------------------------------------------------------- */

static int32_t run(device *d, const DLTensor *const *inputs) {
  const head *part = d->part;
  const memory *m = memories_of(part);
  const tensor *t = tensors_of(part);
  int64_t rows = part->round ? inputs[t->argument]->shape[0] : 1;
  int32_t code = set_rounds(d, part->round && rows ? (rows - 1) / part->round + 1 : 1);
  if (code == TW_OK) {
    for (int64_t i = 0; i < part->inputs; ++i, ++t) pack(d, t, inputs[t->argument]);
    code = tw_accel_flush(d->accel, d->buffer[part->from], 0, m[part->from].bytes * d->rounds);
  }
  uint32_t writable = 0;
  for (int64_t i = 0; i < part->buffers; ++i) writable |= (uint32_t)m[i].is_writable << i;
  if (code == TW_OK) {
    const void *saved = d->program->weights + part->stream, *words = d->words;
    code = tw_accel_submit(d->accel, words ? words : saved, (part->tasks - 1) * d->rounds + 1,
                           d->buffer, (int32_t)part->buffers, writable);
  }
  return code == TW_OK ? tw_accel_wait(d->accel, d->program->timeout_cycles) : code;
}

int32_t tw_accel_run_part(void *context, int32_t number, const DLTensor *const *inputs,
                          int32_t n_inputs, const int64_t *sizes, int64_t *told) {
  (void)n_inputs, (void)sizes, (void)told;
  const tw_accel_program *program = context;
  give_back(ran); /* from a call that failed before `fetch` */
  ran = take(program, part_at(program, number));
  return ran ? run(ran, inputs) : tw_last_code();
}

int32_t tw_accel_fetch_part(void *context, int32_t number, const DLTensor *const *outputs,
                            int32_t n_outputs) {
  (void)context, (void)number;
  device *d = ran;
  const head *part = d->part;
  const tensor *t = tensors_of(part) + part->inputs;
  int64_t bytes = memories_of(part)[part->to].bytes * d->rounds;
  int32_t code = tw_accel_invalidate(d->accel, d->buffer[part->to], 0, bytes);
  for (int32_t i = 0; i < n_outputs && code == TW_OK; ++i) unpack(d, &t[i], outputs[i]);
  ran = NULL;
  give_back(d);
  return code;
}
