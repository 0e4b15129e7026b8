/* Parts of a saved model on an accelerator: what generated code has of them, and who runs them. */
#ifndef TILEWRIGHT_ACCEL_PARTS_H
#define TILEWRIGHT_ACCEL_PARTS_H

#include "accel.h"

/* See parts.c about the numbers; accel/saved.py writes them. */
typedef struct {
  const int64_t *numbers;
  const char *weights, *backend; /* $NAME: what the environment has */
  void **waiting;                /* devices that no call uses */
  int64_t timeout_cycles;
  const tw_accel_kernels *kernels; /* of a simulator; NULL: there is none */
} tw_accel_program;

/* The callbacks of a tw_foreign whose context is a tw_accel_program. */
TW_API int32_t tw_accel_run_part(void *context, int32_t part, const DLTensor *const *inputs,
                                 int32_t n_inputs, const int64_t *sizes, int64_t *told);
TW_API int32_t tw_accel_fetch_part(void *context, int32_t part, const DLTensor *const *outputs,
                                   int32_t n_outputs);

#endif
