/* Decode instruction words to the fields of a task. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

int32_t tw_job_error(tw_accel_job *job, int32_t code, int64_t task, const char *format, ...) {
  if (job->code != TW_OK) return job->code;
  va_list values;
  va_start(values, format);
  vsnprintf(job->message, sizeof job->message, format, values);
  va_end(values);
  job->task = task;
  return job->code = code;
}

static uint64_t bits_at(const uint8_t *word, int32_t at, int32_t bits) {
  uint64_t value = 0;
  for (int32_t done = 0; done < bits;) {
    int32_t bit = at + done, take = 8 - bit % 8;
    if (take > bits - done) take = bits - done;
    value |= (uint64_t)((word[bit / 8] >> bit % 8) & ((1 << take) - 1)) << done;
    done += take;
  }
  return value;
}

static int64_t field(const uint8_t *word, const tw_accel_bit_field *bits) {
  uint64_t value = bits_at(word, bits->at, bits->bits);
  if (bits->is_signed && value >> (bits->bits - 1)) value |= ~UINT64_C(0) << bits->bits;
  return (int64_t)value;
}

int32_t tw_task_decode(const tw_accel_config *config, tw_accel_job *job, int64_t number,
                       tw_task_word *task) {
  const uint8_t *word = job->words + number * config->word_bytes;
  int32_t op = (int32_t)bits_at(word, 0, config->opcode_bits);
  long long at = (long long)number;
  if (op < 1 || op >= TW_ACCEL_OPCODES) {
    return tw_job_error(job, TW_ACCEL_ILLEGAL, number, "%lld: there is no opcode %d", at, op);
  }
  for (int32_t bit = config->bits[op]; bit < 8 * config->word_bytes; ++bit) {
    if (word[bit / 8] >> bit % 8 & 1) {
      return tw_job_error(job, TW_ACCEL_ILLEGAL, number,
                          "%lld: bits that belong to no field are not 0", at);
    }
  }
  task->op = op;
  task->queue = config->queue[op];
  for (int32_t i = 0; i < F_COUNT; ++i) {
    const tw_accel_bit_field *bits = &config->fields[op][i];
    task->f[i] = bits->bits ? field(word, bits) : 0;
    if (bits->choices && task->f[i] >= bits->choices) {
      return tw_job_error(job, TW_ACCEL_ILLEGAL, number, "%lld: choice %lld of a field has no name",
                          at, (long long)task->f[i]);
    }
  }
  if ((task->f[F_POP] | task->f[F_PUSH]) >> task->queue & 1) {
    return tw_job_error(job, TW_ACCEL_ILLEGAL, number,
                        "%lld: it exchanges tokens with its own queue", at);
  }
  if ((op == TW_ACCEL_FINISH) != (number == job->tasks - 1)) {
    return tw_job_error(job, TW_ACCEL_ILLEGAL, number, "%lld: a stream has one finish, at its end",
                        at);
  }
  if (config->fields[op][F_BASE].bits == 0) return TW_OK;
  if (task->f[F_BASE] >= job->buffers) {
    return tw_job_error(job, TW_ACCEL_ILLEGAL, number, "%lld: base register %lld is of no buffer",
                        at, (long long)task->f[F_BASE]);
  }
  if (op == TW_ACCEL_STORE && !job->buffer[task->f[F_BASE]].is_writable) {
    return tw_job_error(job, TW_ACCEL_ILLEGAL, number, "%lld: store writes an input", at);
  }
  return TW_OK;
}

int64_t tw_task_steps(const tw_task_word *task) {
  int64_t count = tw_max64(0, task->f[F_UEND] - task->f[F_UBEGIN]);
  for (int32_t loop = 0; loop < TW_ACCEL_LOOPS; ++loop) {
    int64_t extent = task->f[F_N_0 + 4 * loop];
    /* A loop without steps makes the whole nest empty. */
    if (__builtin_mul_overflow(count, extent, &count)) count = INT64_MAX;
  }
  return count;
}

int64_t tw_task_entries(const tw_task_word *task) {
  int64_t x = task->f[F_X] + task->f[F_X0] + task->f[F_X1];
  int64_t y = task->f[F_Y] + task->f[F_Y0] + task->f[F_Y1];
  return x * y * task->f[F_Z];
}

int64_t tw_format_bytes(const tw_accel_config *config, const tw_task_word *task) {
  int64_t elements = (int64_t)config->batch * config->block_out;
  switch (config->format_memory[task->op][task->f[F_FMT]]) {
    case TW_INP: elements = (int64_t)config->batch * config->block_in; break;
    case TW_WGT: elements = (int64_t)config->block_out * config->block_in; break;
    case TW_UOP: elements = 1; break;
    default: break;
  }
  return elements * config->format_bits[task->op][task->f[F_FMT]] / 8;
}

bool tw_queues_init(tw_task_queue queues[TW_ACCEL_QUEUES], int32_t depth) {
  bool ok = true;
  for (int32_t i = 0; i < TW_ACCEL_QUEUES; ++i) {
    queues[i] = (tw_task_queue){calloc((size_t)depth, sizeof(tw_task_word)),
                                calloc((size_t)depth, sizeof(int64_t)), 0, 0};
    ok = ok && queues[i].task && queues[i].number;
  }
  return ok;
}

void tw_queues_free(tw_task_queue queues[TW_ACCEL_QUEUES]) {
  for (int32_t i = 0; i < TW_ACCEL_QUEUES; ++i) {
    free(queues[i].task);
    free(queues[i].number);
  }
}
