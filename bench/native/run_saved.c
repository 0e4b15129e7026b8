/* Runs a saved model of one f32 input and one f32 output, without Python:
 *
 *     run_saved LIBRARY FUNCTION INPUT_FILE INPUT_DIMS OUTPUT_FILE OUTPUT_DIMS [CALLS]
 *
 * Dims are numbers with commas between them. Prints the milliseconds of the first call, imports
 * included, and of the fastest of the others.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dlpack.h"

typedef int32_t (*model)(const DLTensor *const *args, int32_t n_args);

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int64_t parse(const char *text, int64_t dims[8], int32_t *rank) {
  int64_t count = 1;
  *rank = 0;
  for (const char *at = text; *at && *rank < 8;) {
    char *end;
    dims[*rank] = strtoll(at, &end, 10);
    count *= dims[(*rank)++];
    at = *end ? end + 1 : end;
  }
  return count;
}

int main(int argc, char **argv) {
  if (argc < 7) return 2;
  double begun = now_ms();
  void *library = dlopen(argv[1], RTLD_NOW);
  model run = library ? (model)(uintptr_t)dlsym(library, argv[2]) : NULL;
  const char *(*why)(void) =
      library ? (const char *(*)(void))(uintptr_t)dlsym(library, "tw_last_error") : NULL;
  if (!run || !why) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int64_t shapes[2][8];
  int32_t ranks[2];
  int64_t sizes[2] = {parse(argv[4], shapes[0], &ranks[0]), parse(argv[6], shapes[1], &ranks[1])};
  float *data[2] = {aligned_alloc(64, (size_t)(sizes[0] * 4 + 63) / 64 * 64),
                    aligned_alloc(64, (size_t)(sizes[1] * 4 + 63) / 64 * 64)};
  FILE *in = fopen(argv[3], "rb");
  if (!in || fread(data[0], 4, (size_t)sizes[0], in) != (size_t)sizes[0]) return 1;
  fclose(in);
  DLTensor tensors[2];
  const DLTensor *args[2] = {&tensors[0], &tensors[1]};
  for (int i = 0; i < 2; ++i) {
    DLTensor tensor = {data[i], {kDLCPU, 0}, ranks[i], {kDLFloat, 32, 1}, shapes[i], NULL, 0};
    tensors[i] = tensor;
  }
  int calls = argc > 7 ? atoi(argv[7]) : 1;
  double first = 0, best = 1e30;
  for (int i = 0; i < calls; ++i) {
    double start = i ? now_ms() : begun;
    int32_t code = run(args, 2);
    double took = now_ms() - start;
    if (code) {
      fprintf(stderr, "error %d: %s\n", code, why());
      return 10 + code;
    }
    if (!i) first = took;
    if (i && took < best) best = took;
  }
  printf("%.3f %.3f\n", first, calls > 1 ? best : first);
  FILE *out = fopen(argv[5], "wb");
  if (!out || fwrite(data[1], 4, (size_t)sizes[1], out) != (size_t)sizes[1]) return 1;
  return fclose(out) ? 1 : 0;
}
