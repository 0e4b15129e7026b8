/* Calls a compiled model from C: two rows in, two rows of scores out. */

#include <math.h>
#include <stdio.h>

#include "classifier.h"

int main(void) {
  float x[2][4] = {{1, 2, 3, 4}, {-1, 0, 1, 0}};
  float scores[2][3];
  int64_t x_shape[] = {2, 4}, scores_shape[] = {2, 3};
  DLTensor in = {.data = x,
                 .device = {kDLCPU, 0},
                 .ndim = 2,
                 .dtype = {kDLFloat, 32, 1},
                 .shape = x_shape};
  DLTensor out = {.data = scores,
                  .device = {kDLCPU, 0},
                  .ndim = 2,
                  .dtype = {kDLFloat, 32, 1},
                  .shape = scores_shape};
  const DLTensor *args[] = {&in, &out};
  if (classifier(args, 2) != 0) {
    fprintf(stderr, "%s\n", tw_last_error());
    return 1;
  }
  for (int row = 0; row < 2; row++) {
    printf("%.3f %.3f %.3f\n", scores[row][0], scores[row][1], scores[row][2]);
    float sum = scores[row][0] + scores[row][1] + scores[row][2];
    if (fabsf(sum - 1) > 1e-5f) return 1;
  }

  in.shape = scores_shape; /* a wrong shape is refused, nothing is read or written */
  if (classifier(args, 2) == 0) return 1;
  printf("refused: %s\n", tw_last_error());
  return 0;
}
