/* Runs a saved model of one output, without Python:
 *
 *     run_saved LIBRARY FUNCTION INPUT_FILE INPUT_DIMS ... OUTPUT_FILE OUTPUT_DIMS [CALLS]
 *
 * Dims are numbers with commas between them; before them may stand a type, as in `i64:2,3` or
 * `bool:`, else it is f32. Prints the milliseconds of the first call, imports included, and of the
 * fastest of the others.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dlpack.h"

enum { MAX_TENSORS = 8, MAX_DIMS = 8 };
typedef int32_t (*model)(const DLTensor *const *args, int32_t n_args);

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static const struct {
  const char *name;
  DLDataType type;
} types[] = {{"f32:", {kDLFloat, 32, 1}}, {"i64:", {kDLInt, 64, 1}}, {"bool:", {kDLBool, 8, 1}}};

/* A tensor of the host by its type and dims; returns its bytes. */
static size_t parse(const char *text, int64_t dims[MAX_DIMS], DLTensor *made) {
  DLTensor tensor = {NULL, {kDLCPU, 0}, 0, types[0].type, dims, NULL, 0};
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    size_t length = strlen(types[i].name);
    if (strncmp(text, types[i].name, length)) continue;
    tensor.dtype = types[i].type;
    text += length;
  }
  size_t count = 1;
  for (const char *at = text; *at && tensor.ndim < MAX_DIMS;) {
    char *end;
    dims[tensor.ndim] = strtoll(at, &end, 10);
    count *= (size_t)dims[tensor.ndim++];
    at = *end ? end + 1 : end;
  }
  size_t size = count * tensor.dtype.bits / 8;
  tensor.data = aligned_alloc(64, (size + 63) / 64 * 64);
  *made = tensor;
  return size;
}

int main(int argc, char **argv) {
  int n_tensors = (argc - 3) / 2, calls = (argc - 3) % 2 ? atoi(argv[argc - 1]) : 1;
  if (n_tensors < 2 || n_tensors > MAX_TENSORS) return 2;
  double begun = now_ms();
  void *library = dlopen(argv[1], RTLD_NOW);
  model run = library ? (model)(uintptr_t)dlsym(library, argv[2]) : NULL;
  const char *(*why)(void) =
      library ? (const char *(*)(void))(uintptr_t)dlsym(library, "tw_last_error") : NULL;
  if (!run || !why) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int64_t dims[MAX_TENSORS][MAX_DIMS];
  DLTensor tensors[MAX_TENSORS];
  const DLTensor *args[MAX_TENSORS];
  size_t size = 0; /* of the last, the output */
  char **pairs = argv + 3;
  for (int i = 0; i < n_tensors; ++i) {
    size = parse(pairs[2 * i + 1], dims[i], &tensors[i]);
    args[i] = &tensors[i];
    if (i == n_tensors - 1) break;
    FILE *in = fopen(pairs[2 * i], "rb");
    if (!in || fread(tensors[i].data, 1, size, in) != size) return 1;
    fclose(in);
  }
  double first = 0, best = 1e30;
  for (int i = 0; i < calls; ++i) {
    double start = i ? now_ms() : begun;
    int32_t code = run(args, n_tensors);
    double took = now_ms() - start;
    if (code) {
      fprintf(stderr, "error %d: %s\n", code, why());
      return 10 + code;
    }
    if (!i) first = took;
    if (i && took < best) best = took;
  }
  printf("%.3f %.3f\n", first, calls > 1 ? best : first);
  FILE *out = fopen(pairs[2 * (n_tensors - 1)], "wb");
  if (!out || fwrite(tensors[n_tensors - 1].data, 1, size, out) != size) return 1;
  return fclose(out) ? 1 : 0;
}
