/* Parts of a saved model on an accelerator: the data in generated code, and the callbacks. */
#ifndef TILEWRIGHT_ACCEL_PARTS_H
#define TILEWRIGHT_ACCEL_PARTS_H

#include "accel.h"

/* See parts.c for the numbers, which accel/saved.py writes. */
typedef struct {
  const int64_t *numbers;
  const char *weights, *backend; /* $NAME: the value of an environment variable */
  void **waiting;                /* idle devices */
  int64_t timeout_cycles;
  const tw_accel_kernels *kernels; /* of a simulator, or NULL */
} tw_accel_program;

/* The callbacks of a tw_foreign whose context is a tw_accel_program. */
TW_API int32_t tw_accel_run_part(void *context, int32_t part, const DLTensor *const *inputs,
                                 int32_t n_inputs, const int64_t *sizes, int64_t *told);
TW_API int32_t tw_accel_fetch_part(void *context, int32_t part, const DLTensor *const *outputs,
                                   int32_t n_outputs);

#endif
