/* Stands in for the CUDA driver in tests: memory of the host, kernels that only leave a line.
 *
 * What is captured runs when its graph is launched: copies and conditional nodes as they are meant,
 * with the kernels that decide (`choose`, `begin`, `again`); others are told by "run NAME".
 * FAKE_CUDA_LOG names the file that calls are told to. FAKE_CUDA_LIMIT, in bytes, is all the memory
 * there is; FAKE_CUDA_VERSION the driver's; FAKE_CUDA_FAULT a kernel whose launch fails;
 * FAKE_CUDA_ORDINAL the GPU that all of it is on; with FAKE_CUDA_CAPTURES streams of callers are
 * being captured; with FAKE_CUDA_REFUSES graphs cannot be changed. What is given back is told by
 * its kind, and events and waits by their stream.
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
static int n_memory;

enum kind { KERNEL, COPY, NODE };
enum { MAX_OPS = 512, MAX_VALUES = 7, MAX_DEPTH = 8, MAX_HANDLES = 64 };
struct graph {
  int count;
  struct op {
    enum kind kind;
    const char *name;
    uint64_t values[MAX_VALUES]; /* of a kernel that decides; of a copy: to, from, bytes */
    uint64_t handle;
    int runs_again;
    struct graph *inside;
  } ops[MAX_OPS];
};
static struct graph *captured[MAX_DEPTH]; /* the last is recorded into, whatever the stream */
static int depth;
static unsigned handles[MAX_HANDLES];
static uint64_t n_handles = 1;

static struct op *recorded(enum kind kind) {
  struct graph *into = captured[depth - 1];
  struct op *made = &into->ops[into->count++];
  if (into->count == MAX_OPS) abort();
  made->kind = kind;
  return made;
}

static int n_values(const char *name) {
  return !strcmp(name, "choose") ? 3 : !strcmp(name, "begin") ? 7 : !strcmp(name, "again") ? 4 : 0;
}

static int64_t *number_at(uint64_t address) { return (int64_t *)(uintptr_t)address; }
static unsigned char *truth_at(uint64_t address) { return (unsigned char *)(uintptr_t)address; }

/* A kernel of src/tilewright/codegen/conditions.py. */
static void decide(const char *name, const uint64_t *v) {
  if (!strcmp(name, "choose")) {
    handles[v[0]] = *truth_at(v[2]) != 0;
    handles[v[1]] = *truth_at(v[2]) == 0;
    return;
  }
  int64_t *control = number_at(v[1]); /* the iteration, how many there are, the condition */
  if (!strcmp(name, "begin")) {
    int64_t most = v[2] && *number_at(v[2]) < (int64_t)v[3] ? *number_at(v[2]) : (int64_t)v[3];
    control[0] = *number_at(v[5]) = 0;
    control[1] = most;
    *truth_at(v[6]) = 1;
    handles[v[0]] = (!v[4] || *truth_at(v[4])) && most > 0;
  } else {
    *number_at(v[2]) = ++control[0];
    *truth_at(v[3]) = 1;
    handles[v[0]] = *(unsigned char *)&control[2] && control[0] < control[1];
  }
}

static void run(const struct graph *graph) {
  for (int i = 0; i < graph->count; ++i) {
    const struct op *op = &graph->ops[i];
    if (op->kind == COPY) {
      memmove(truth_at(op->values[0]), truth_at(op->values[1]), (size_t)op->values[2]);
    } else if (op->kind == NODE) {
      while (handles[op->handle]) {
        run(op->inside);
        if (!op->runs_again) break;
      }
    } else if (n_values(op->name)) {
      decide(op->name, op->values);
    } else {
      tell("run %s\n", op->name);
    }
  }
}

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
int cuDevicePrimaryCtxRelease_v2(int device) {
  tell("release %d\n", device);
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
  memset(memory[n_memory].start, 0, size);
  memory[n_memory].size = size;
  *address = (uint64_t)(uintptr_t)memory[n_memory++].start;
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  tell("free %d\n", is_ours(address));
  return 0;
}
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
  tell("copy %zu %d %d\n", size, is_ours(to), is_ours(from));
  if (!depth) return 1;
  memcpy(recorded(COPY)->values, (uint64_t[]){to, from, size}, 3 * sizeof to);
  return stream ? 0 : 1;
}
int cuPointerGetAttribute(void *value, int what, uint64_t address) {
  const char *ordinal = getenv("FAKE_CUDA_ORDINAL");
  *(int *)value = what == 9 ? (ordinal ? atoi(ordinal) : 0) : 2; /* else: memory of a GPU */
  return is_ours(address) ? 0 : 1;
}
int cuModuleLoadData(void **module, const void *image) {
  tell("module %d\n", strstr(image, ".entry") != NULL);
  *module = (void *)image;
  return 0;
}
int cuModuleUnload(void *module) {
  tell("unload %d\n", strstr(module, ".entry") != NULL);
  return 0;
}
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
  if (!n_values(function)) {
    tell("launch %s %u %u %d %d %s\n", (const char *)function, grid[0] * grid[1] * grid[2],
         block[0] * block[1] * block[2], is_ours(*(uint64_t *)params[0]), depth > 0, how);
  }
  if (!depth) return 1;
  struct op *op = recorded(KERNEL);
  op->name = function;
  for (int i = 0; i < n_values(function); ++i) op->values[i] = *(uint64_t *)params[i];
  return 0;
}
int cuStreamCreate(void **stream, unsigned flags) {
  *stream = (void *)(intptr_t)(flags + 9);
  return 0;
}
int cuStreamSynchronize(void *stream) {
  tell("synchronize %d\n", (int)(intptr_t)stream);
  return stream ? 0 : 1;
}
int cuStreamDestroy_v2(void *stream) { return stream ? 0 : 1; }
int cuStreamBeginCapture_v2(void *stream, int mode) {
  captured[depth++] = calloc(1, sizeof(struct graph));
  return stream && mode ? 0 : 1;
}
int cuStreamEndCapture(void *stream, void **graph) {
  *graph = captured[--depth];
  return stream ? 0 : 1;
}
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void ***waits,
                              const void **edges, size_t *n_waits) {
  (void)id;
  *status = 1;
  *graph = captured[depth - 1];
  static void *last;
  last =
      captured[depth - 1]->count ? &captured[depth - 1]->ops[captured[depth - 1]->count - 1] : NULL;
  if (waits) *waits = &last, *edges = NULL, *n_waits = last != NULL;
  return stream && depth ? 0 : 1;
}
int cuStreamUpdateCaptureDependencies_v2(void *stream, void **nodes, const void *edges,
                                         size_t count, unsigned flags) {
  return stream && nodes && !edges && count == 1 && flags == 1 ? 0 : 1;
}
int cuStreamBeginCaptureToGraph(void *stream, void *graph, void **waits, const void *edges,
                                size_t count, int mode) {
  captured[depth++] = graph;
  return stream && graph && !waits && !edges && !count && mode ? 0 : 1;
}
int cuGraphConditionalHandleCreate(uint64_t *handle, void *graph, void *context, unsigned value,
                                   unsigned flags) {
  if (n_handles == MAX_HANDLES) abort();
  *handle = n_handles++;
  return graph == captured[depth - 1] && context && !value && !flags ? 0 : 1;
}
struct node_params {
  int type, reserved[3];
  uint64_t handle;
  int kind;
  unsigned size;
  void **graphs, *context;
  char rest[232 - 32];
  int64_t last;
};
int cuGraphAddNode_v2(void **node, void *graph, void **waits, const void *edges, size_t count,
                      struct node_params *params) {
  struct op *op = recorded(NODE);
  op->handle = params->handle;
  op->runs_again = params->kind;
  op->inside = calloc(1, sizeof(struct graph));
  params->graphs = (void **)&op->inside;
  *node = op;
  tell("node %d\n", params->kind);
  (void)waits, (void)edges, (void)count;
  return graph == captured[depth - 1] && params->type == 13 && params->size == 1 &&
                 params->context && !params->last
             ? 0
             : 1;
}
struct kernel_params {
  const char *function;
  unsigned grid[3], block[3], shared;
  void **params, **extra, *kernel, *context;
};
int cuGraphExecKernelNodeSetParams_v2(struct graph *graph, struct op *node,
                                      const struct kernel_params *params) {
  if (getenv("FAKE_CUDA_REFUSES")) return 1;
  int is_inside = node >= graph->ops && node < graph->ops + graph->count;
  tell("change %s %d\n", params->function, is_ours(*(uint64_t *)params->params[0]));
  return is_inside && node->kind == KERNEL && node->name == params->function && params->grid[0] &&
                 params->block[0] && !params->extra && !params->kernel && !params->context
             ? 0
             : 1;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  tell(depth ? "wait\n" : "behind %d\n", (int)(intptr_t)stream);
  return stream && event && !flags ? 0 : 1;
}
int cuStreamIsCapturing(void *stream, int *status) {
  *status = getenv("FAKE_CUDA_CAPTURES") != NULL;
  return stream ? 0 : 1;
}
int cuEventCreate(void **event, unsigned flags) {
  *event = (void *)(intptr_t)(flags + 3);
  return 0;
}
int cuEventRecord(void *event, void *stream) {
  if (!depth) tell("event %d\n", (int)(intptr_t)stream);
  return event && stream ? 0 : 1;
}
int cuEventSynchronize(void *event) {
  tell("waited\n");
  return event ? 0 : 1;
}
int cuEventDestroy_v2(void *event) { return event ? 0 : 1; }
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
  *made = graph;
  return (int)flags;
}
int cuGraphLaunch(void *graph, void *stream) {
  tell("graph\n");
  if (!graph || !stream) return 1;
  run(graph);
  return 0;
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
