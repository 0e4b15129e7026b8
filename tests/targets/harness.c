/* Calls a compiled function on tensors read from standard input and writes them all back.
 *
 * Input: the number of tensors; for each its code, bits and rank, its extents, its size in bytes
 * (all int64), then its bytes. Output: the function's code as int64, then every tensor's bytes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tilewright.h"

int32_t KERNEL(const DLTensor *const *args, int32_t n_args);

static int64_t number(void) {
  int64_t value;
  if (fread(&value, sizeof value, 1, stdin) != 1) exit(3);
  return value;
}

int main(void) {
  int64_t count = number();
  DLTensor *tensors = calloc((size_t)count + 1, sizeof *tensors);
  const DLTensor **args = calloc((size_t)count + 1, sizeof *args);
  int64_t *sizes = calloc((size_t)count + 1, sizeof *sizes);
  for (int64_t i = 0; i < count; ++i) {
    DLTensor *t = &tensors[i];
    args[i] = t;
    t->device.device_type = kDLCPU;
    t->dtype.code = (uint8_t)number();
    t->dtype.bits = (uint8_t)number();
    t->dtype.lanes = 1;
    t->ndim = (int32_t)number();
    t->shape = calloc((size_t)t->ndim + 1, sizeof(int64_t));
    for (int32_t axis = 0; axis < t->ndim; ++axis) t->shape[axis] = number();
    sizes[i] = number();
    t->data = malloc((size_t)sizes[i] + 64);
    if (fread(t->data, 1, (size_t)sizes[i], stdin) != (size_t)sizes[i]) return 3;
  }
  int64_t code = KERNEL(args, (int32_t)count);
  if (code != 0) fprintf(stderr, "%s\n", tw_last_error());
  fwrite(&code, sizeof code, 1, stdout);
  for (int64_t i = 0; i < count; ++i) fwrite(tensors[i].data, 1, (size_t)sizes[i], stdout);
  return 0;
}
