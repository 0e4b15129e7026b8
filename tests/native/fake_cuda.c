/* Stands in for the CUDA driver in tests: memory of the host, kernels that only leave a line.
 *
 * FAKE_CUDA_LOG names the file that calls are told to. FAKE_CUDA_LIMIT, in bytes, is all the memory
 * there is; FAKE_CUDA_VERSION the driver's; FAKE_CUDA_FAULT a kernel whose launch fails.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *log_file(void) {
  static FILE *file;
  if (!file) file = fopen(getenv("FAKE_CUDA_LOG"), "a");
  return file;
}

static void tell(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(log_file(), format, args);
  va_end(args);
  fflush(log_file());
}

static size_t taken;
static struct {
  char *start;
  size_t size;
} memory[256];
static int n_memory, capturing;

static size_t limit(void) {
  const char *text = getenv("FAKE_CUDA_LIMIT");
  return text ? (size_t)strtoull(text, NULL, 10) : (size_t)1 << 40;
}

static int is_ours(uint64_t address) {
  for (int i = 0; i < n_memory; ++i) {
    uint64_t start = (uint64_t)(uintptr_t)memory[i].start;
    if (address >= start && address < start + memory[i].size) return 1;
  }
  return 0;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) {
  const char *text = getenv("FAKE_CUDA_VERSION");
  *version = text ? atoi(text) : 13000;
  return 0;
}
int cuDeviceGet(int *device, int at) {
  *device = at;
  return 0;
}
int cuDeviceGetAttribute(int *value, int what, int device) {
  (void)device;
  *value = what == 75 ? 9 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)(intptr_t)(device + 1);
  return 0;
}
int cuCtxSetCurrent(void *context) { return context ? 0 : 0; }
int cuCtxGetCurrent(void **context) {
  *context = NULL;
  return 0;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == 2 ? "out of memory" : "a fault";
  return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
  if (taken + size > limit()) return 2;
  taken += size;
  memory[n_memory].start = aligned_alloc(256, (size + 255) / 256 * 256);
  memory[n_memory].size = size;
  *address = (uint64_t)(uintptr_t)memory[n_memory++].start;
  return 0;
}
int cuMemFree_v2(uint64_t address) { return address ? 0 : 0; }
int cuMemGetInfo_v2(size_t *left, size_t *all) {
  *all = limit();
  *left = *all - taken;
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
  (void)stream;
  tell("in %zu %d\n", size, is_ours(to));
  memcpy((void *)(uintptr_t)to, from, size);
  return 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) {
  (void)stream;
  memset((void *)(uintptr_t)to, value, size);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
  (void)stream;
  tell("out %zu %d\n", size, is_ours(from));
  memcpy(to, (void *)(uintptr_t)from, size);
  return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
  (void)stream;
  tell("copy %zu %d %d\n", size, is_ours(to), is_ours(from));
  return 0;
}
int cuPointerGetAttribute(void *value, int what, uint64_t address) {
  (void)what;
  *(unsigned *)value = 2;
  return is_ours(address) ? 0 : 1;
}
int cuModuleLoadData(void **module, const void *image) {
  tell("module %d\n", strstr(image, ".entry") != NULL);
  *module = (void *)image;
  return 0;
}
int cuModuleUnload(void *module) { return module ? 0 : 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (!strstr(module, name)) return 500;
  *function = (void *)name;
  return 0;
}
int cuFuncSetAttribute(void *function, int what, int value) {
  return function && what && value ? 0 : 1;
}
struct config {
  unsigned grid[3], block[3], shared;
  void *stream;
  struct {
    int id;
    char padding[4], value[64];
  } *attributes;
  unsigned n_attributes;
};
int cuLaunchKernelEx(const struct config *config, void *function, void **params, void **extra) {
  (void)extra;
  const unsigned *grid = config->grid, *block = config->block;
  const char *fault = getenv("FAKE_CUDA_FAULT");
  if (fault && strstr(function, fault)) return 700;
  const char *how = "late";
  for (unsigned i = 0; i < config->n_attributes; ++i) {
    how = config->attributes[i].id == 6 ? "early" : "together";
  }
  tell("launch %s %u %u %d %d %s\n", (const char *)function, grid[0] * grid[1] * grid[2],
       block[0] * block[1] * block[2], is_ours(*(uint64_t *)params[0]), capturing, how);
  return 0;
}
int cuStreamCreate(void **stream, unsigned flags) {
  *stream = (void *)(intptr_t)(flags + 9);
  return 0;
}
int cuStreamSynchronize(void *stream) { return stream ? 0 : 1; }
int cuStreamDestroy_v2(void *stream) { return stream ? 0 : 1; }
int cuStreamBeginCapture_v2(void *stream, int mode) {
  capturing = 1;
  return stream && mode ? 0 : 1;
}
int cuStreamEndCapture(void *stream, void **graph) {
  capturing = 0;
  *graph = stream;
  return 0;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  tell("wait\n");
  return stream && event && !flags ? 0 : 1;
}
int cuEventCreate(void **event, unsigned flags) {
  *event = (void *)(intptr_t)(flags + 3);
  return 0;
}
int cuEventRecord(void *event, void *stream) { return event && stream ? 0 : 1; }
int cuEventDestroy_v2(void *event) { return event ? 0 : 1; }
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
  *made = graph;
  return (int)flags;
}
int cuGraphLaunch(void *graph, void *stream) {
  tell("graph\n");
  return graph && stream ? 0 : 1;
}
int cuGraphDestroy(void *graph) { return graph ? 0 : 1; }
int cuGraphExecDestroy(void *graph) { return graph ? 0 : 1; }
int cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *base, const uint64_t *dims,
                            const uint64_t *pitch, const int *lower, const int *upper,
                            uint32_t channels, uint32_t pixels, const uint32_t *steps,
                            int interleave, int swizzle, int promotion, int fill) {
  (void)map, (void)pitch, (void)steps, (void)interleave, (void)promotion, (void)fill;
  tell("windows %d %u %d %d, from %d %d to %d %d, %u of %u\n", type, rank, swizzle,
       is_ours((uint64_t)(uintptr_t)base) && dims[0], lower[1], lower[0], upper[1], upper[0],
       pixels, channels);
  return 0;
}
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *base, const uint64_t *dims,
                           const uint64_t *pitch, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill) {
  (void)map, (void)pitch, (void)box, (void)steps, (void)interleave, (void)promotion, (void)fill;
  tell("map %d %u %d %d\n", type, rank, swizzle, is_ours((uint64_t)(uintptr_t)base) && dims[0]);
  return 0;
}
