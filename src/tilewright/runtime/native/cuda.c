/* Models on an NVIDIA GPU: kernels, arena and launches, by the CUDA driver.
 *
 * Nothing of CUDA is needed to build this. The driver's library is opened by the first call; a
 * machine without one gets TW_ERROR_NO_DRIVER. The launches of a model are data (`tw_cuda_model`),
 * recorded once as a CUDA graph for the addresses that a call brings, and started together from
 * then on. Tensors of the host are copied; those of the GPU are used where they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

/* The driver's interface, as far as it is used here: handles are pointers, addresses 64 bits. */
typedef int result;
typedef uint64_t address;
typedef struct {
  _Alignas(64) uint64_t words[16];
} tensor_map;

enum {
  POINTER_MEMORY_TYPE = 2, /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
  MEMORY_OF_DEVICE = 2,    /* CU_MEMORYTYPE_DEVICE */
  CAPTURE_THREAD_LOCAL = 1,
  MAX_DYNAMIC_SHARED = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
  SHARED_BY_DEFAULT = 48 * 1024,
  STATIC_SHARED = 4096, /* that kernels with dynamic shared memory have beside it, at most */
  LEAST_DRIVER = 12000, /* CUDA 12.0: PTX for sm_90a, graphs by capture per thread */
  LEAST_COMPUTE = 80,
  COMPUTE_MAJOR = 75,
  COMPUTE_MINOR = 76,
  SWIZZLE_128B = 3,
  PROMOTE_128B = 2,
  NO_TIMING = 2, /* CU_EVENT_DISABLE_TIMING */
  BRANCHES = 8   /* launches side by side, at most */
};

static struct {
  result (*init)(unsigned);
  result (*driver_version)(int *);
  result (*device_get)(int *, int);
  result (*device_attribute)(int *, int, int);
  result (*context_retain)(void **, int);
  result (*context_set)(void *);
  result (*context_get)(void **);
  result (*error_text)(result, const char **);
  result (*memory_alloc)(address *, size_t);
  result (*memory_free)(address);
  result (*memory_info)(size_t *, size_t *);
  result (*copy_in)(address, const void *, size_t, void *);
  result (*copy_out)(void *, address, size_t, void *);
  result (*copy)(address, address, size_t, void *);
  result (*pointer_attribute)(void *, int, address);
  result (*module_load)(void **, const void *);
  result (*module_unload)(void *);
  result (*module_function)(void **, void *, const char *);
  result (*function_set)(void *, int, int);
  result (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
  result (*stream_create)(void **, unsigned);
  result (*stream_wait)(void *);
  result (*stream_destroy)(void *);
  result (*stream_wait_event)(void *, void *, unsigned);
  result (*event_create)(void **, unsigned);
  result (*event_record)(void *, void *);
  result (*event_destroy)(void *);
  result (*capture_begin)(void *, int);
  result (*capture_end)(void *, void **);
  result (*graph_make)(void **, void *, unsigned long long);
  result (*graph_launch)(void *, void *);
  result (*graph_free)(void *);
  result (*graph_exec_free)(void *);
  result (*map_encode)(tensor_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                       const uint32_t *, const uint32_t *, int, int, int, int);
  result (*window_encode)(tensor_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                          const int *, const int *, uint32_t, uint32_t, const uint32_t *, int, int,
                          int, int);
} cu;

static const struct {
  const char *name;
  void **place;
} symbols[] = {
    {"cuInit", (void **)&cu.init},
    {"cuDriverGetVersion", (void **)&cu.driver_version},
    {"cuDeviceGet", (void **)&cu.device_get},
    {"cuDeviceGetAttribute", (void **)&cu.device_attribute},
    {"cuDevicePrimaryCtxRetain", (void **)&cu.context_retain},
    {"cuCtxSetCurrent", (void **)&cu.context_set},
    {"cuCtxGetCurrent", (void **)&cu.context_get},
    {"cuGetErrorString", (void **)&cu.error_text},
    {"cuMemAlloc_v2", (void **)&cu.memory_alloc},
    {"cuMemFree_v2", (void **)&cu.memory_free},
    {"cuMemGetInfo_v2", (void **)&cu.memory_info},
    {"cuMemcpyHtoDAsync_v2", (void **)&cu.copy_in},
    {"cuMemcpyDtoHAsync_v2", (void **)&cu.copy_out},
    {"cuMemcpyDtoDAsync_v2", (void **)&cu.copy},
    {"cuPointerGetAttribute", (void **)&cu.pointer_attribute},
    {"cuModuleLoadData", (void **)&cu.module_load},
    {"cuModuleUnload", (void **)&cu.module_unload},
    {"cuModuleGetFunction", (void **)&cu.module_function},
    {"cuFuncSetAttribute", (void **)&cu.function_set},
    {"cuLaunchKernel", (void **)&cu.launch},
    {"cuStreamCreate", (void **)&cu.stream_create},
    {"cuStreamSynchronize", (void **)&cu.stream_wait},
    {"cuStreamDestroy_v2", (void **)&cu.stream_destroy},
    {"cuStreamWaitEvent", (void **)&cu.stream_wait_event},
    {"cuEventCreate", (void **)&cu.event_create},
    {"cuEventRecord", (void **)&cu.event_record},
    {"cuEventDestroy_v2", (void **)&cu.event_destroy},
    {"cuStreamBeginCapture_v2", (void **)&cu.capture_begin},
    {"cuStreamEndCapture", (void **)&cu.capture_end},
    {"cuGraphInstantiateWithFlags", (void **)&cu.graph_make},
    {"cuGraphLaunch", (void **)&cu.graph_launch},
    {"cuGraphDestroy", (void **)&cu.graph_free},
    {"cuGraphExecDestroy", (void **)&cu.graph_exec_free},
    {"cuTensorMapEncodeTiled", (void **)&cu.map_encode},
    {"cuTensorMapEncodeIm2col", (void **)&cu.window_encode},
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static void *primary; /* the context of the first GPU */

/* A refusal of the driver, in its own words. */
static int32_t refused(const char *what, result code) {
  const char *text = NULL;
  if (cu.error_text) cu.error_text(code, &text);
  return tw_errorf(TW_ERROR_GPU, "%s failed: %s (%d)", what, text ? text : "unknown", code);
}

#define TRY(what, call)                            \
  do {                                             \
    result tried = (call);                         \
    if (tried != 0) return refused((what), tried); \
  } while (0)

static int32_t find_symbols(void *library) {
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; ++i) {
    *symbols[i].place = dlsym(library, symbols[i].name);
    if (*symbols[i].place) continue;
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver is too old: it has no %s",
                     symbols[i].name);
  }
  return TW_OK;
}

static int32_t check_gpu(int *device) {
  result code = cu.init(0);
  if (code != 0) {
    const char *text = NULL;
    cu.error_text(code, &text);
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver cannot be used: %s",
                     text ? text : "unknown");
  }
  int version = 0, major = 0, minor = 0;
  TRY("cuDriverGetVersion", cu.driver_version(&version));
  if (version < LEAST_DRIVER) {
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver is of version %d.%d, %d.%d is needed",
                     version / 1000, version % 1000 / 10, LEAST_DRIVER / 1000,
                     LEAST_DRIVER % 1000 / 10);
  }
  TRY("cuDeviceGet", cu.device_get(device, 0));
  TRY("cuDeviceGetAttribute", cu.device_attribute(&major, COMPUTE_MAJOR, *device));
  TRY("cuDeviceGetAttribute", cu.device_attribute(&minor, COMPUTE_MINOR, *device));
  if (10 * major + minor < LEAST_COMPUTE) {
    return tw_errorf(TW_ERROR_NO_DRIVER, "the GPU is sm_%d%d, sm_%d or later is needed", major,
                     minor, LEAST_COMPUTE);
  }
  return TW_OK;
}

/* Open the driver once for the process; a failure is tried again by the next call. */
static int32_t open_driver(void) {
  int32_t code = TW_OK;
  pthread_mutex_lock(&opening);
  if (!primary) {
    const char *name = getenv("TILEWRIGHT_CUDA_DRIVER");
    void *library = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int device = 0;
    if (!library) {
      code = tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver cannot be opened: %s", dlerror());
    } else {
      code = find_symbols(library);
      if (code == TW_OK) code = check_gpu(&device);
      if (code == TW_OK) {
        result retained = cu.context_retain(&primary, device);
        if (retained != 0) code = refused("cuDevicePrimaryCtxRetain", retained);
      }
      if (code != TW_OK) dlclose(library);
    }
  }
  pthread_mutex_unlock(&opening);
  return code;
}

/* ---- a model on the GPU ---- */

typedef struct {
  pthread_mutex_t lock; /* one call at a time: there is one arena */
  bool is_ready;
  void **modules, **kernels;
  address weights, arena;
  address *staged; /* inputs, then outputs: room for tensors of the host; 0 until needed */
  address *bound;  /* the addresses that the graph is recorded for */
  tensor_map *maps;
  void *stream, *graph;
  void *branches[BRANCHES]; /* streams that launches are recorded on, `stream` the first */
} instance;

static int32_t allocate(address *made, int64_t size_bytes) {
  size_t size = size_bytes > 0 ? (size_t)size_bytes : 1, left = 0, all = 0;
  if (cu.memory_alloc(made, size) == 0) return TW_OK;
  *made = 0;
  cu.memory_info(&left, &all);
  return tw_errorf(TW_ERROR_NO_MEMORY,
                   "%zu bytes of device memory were asked for, %zu of %zu are free", size, left,
                   all);
}

static instance *instance_of(const tw_cuda_model *model) {
  pthread_mutex_lock(&opening);
  instance *found = *model->instance;
  if (!found) {
    int32_t tensors = model->n_inputs + model->n_outputs;
    found = calloc(1, sizeof *found);
    void *tables = calloc((size_t)(model->n_modules + model->n_kernels + 1), sizeof(void *));
    address *places = calloc((size_t)(2 * tensors + 1), sizeof *places);
    tensor_map *maps = NULL;
    if (posix_memalign((void **)&maps, 64, (size_t)(model->n_maps + 1) * sizeof *maps)) maps = NULL;
    if (found && tables && places && maps) {
      pthread_mutex_init(&found->lock, NULL);
      found->modules = tables;
      found->kernels = found->modules + model->n_modules;
      found->staged = places;
      found->bound = places + tensors;
      found->maps = maps;
      *model->instance = found;
    } else {
      free(found);
      free(tables);
      free(places);
      free(maps);
      found = NULL;
      tw_error(TW_ERROR_NO_MEMORY, "no memory for a model");
    }
  }
  pthread_mutex_unlock(&opening);
  return found;
}

/* Kernels, weights and arena; what is there already after a failure is not made again. */
static int32_t prepare(const tw_cuda_model *model, instance *on) {
  if (on->is_ready) return TW_OK;
  for (int32_t i = 0; i < BRANCHES; ++i) {
    if (!on->branches[i]) TRY("cuStreamCreate", cu.stream_create(&on->branches[i], 0));
  }
  on->stream = on->branches[0];
  for (int32_t i = 0; i < model->n_modules; ++i) {
    if (!on->modules[i]) {
      TRY("cuModuleLoadData", cu.module_load(&on->modules[i], model->ptx[i]));
    }
  }
  for (int32_t i = 0; i < model->n_kernels; ++i) {
    const tw_cuda_kernel *kernel = &model->kernels[i];
    TRY("cuModuleGetFunction",
        cu.module_function(&on->kernels[i], on->modules[kernel->module], kernel->name));
    if (kernel->shared_bytes + STATIC_SHARED > SHARED_BY_DEFAULT) {
      TRY("cuFuncSetAttribute",
          cu.function_set(on->kernels[i], MAX_DYNAMIC_SHARED, kernel->shared_bytes));
    }
  }
  int32_t code = TW_OK;
  if (!on->weights && (code = allocate(&on->weights, model->weights_bytes))) return code;
  if (!on->arena && (code = allocate(&on->arena, model->arena_bytes))) return code;
  if (model->weights_bytes) {
    TRY("cuMemcpyHtoD",
        cu.copy_in(on->weights, model->weights, (size_t)model->weights_bytes, on->stream));
  }
  TRY("cuStreamSynchronize", cu.stream_wait(on->stream));
  on->is_ready = true;
  return TW_OK;
}

static address place_of(const tw_cuda_model *model, const instance *on,
                        const tw_cuda_argument *argument) {
  switch (argument->kind) {
    case TW_CUDA_ARENA: return on->arena + (address)argument->value;
    case TW_CUDA_WEIGHT: return on->weights + (address)argument->value;
    case TW_CUDA_INPUT: return on->bound[argument->value];
    case TW_CUDA_OUTPUT: return on->bound[model->n_inputs + argument->value];
    default: return (address)argument->value;
  }
}

/* Windows of images; sizes are from the innermost out. */
static int32_t encode_windows(const tw_cuda_map *map, void *base, tensor_map *made) {
  uint64_t extents[4] = {(uint64_t)map->channels, (uint64_t)map->columns, (uint64_t)map->rows,
                         (uint64_t)map->matrices};
  uint64_t pitch[3], apart = (uint64_t)map->element_bytes;
  for (int axis = 0; axis < 3; ++axis) {
    apart *= extents[axis];
    pitch[axis] = apart;
  }
  int lower[2] = {map->corners[1], map->corners[0]}, upper[2] = {map->corners[3], map->corners[2]};
  uint32_t steps[4] = {1, (uint32_t)map->corners[5], (uint32_t)map->corners[4], 1};
  TRY("cuTensorMapEncodeIm2col",
      cu.window_encode(made, map->type, 4, base, extents, pitch, lower, upper,
                       (uint32_t)map->box_columns, (uint32_t)map->box_rows, steps, 0, SWIZZLE_128B,
                       PROMOTE_128B, 0));
  return TW_OK;
}

static int32_t encode_maps(const tw_cuda_model *model, instance *on) {
  for (int32_t i = 0; i < model->n_maps; ++i) {
    const tw_cuda_map *map = &model->maps[i];
    if (map->channels) {
      void *image = (void *)(uintptr_t)place_of(model, on, &map->base);
      int32_t status = encode_windows(map, image, &on->maps[i]);
      if (status != TW_OK) return status;
      continue;
    }
    uint64_t columns = (uint64_t)map->columns, rows = (uint64_t)map->rows;
    uint64_t extents[3] = {columns, rows, (uint64_t)map->matrices};
    uint64_t row_bytes = columns * (uint64_t)map->element_bytes;
    uint64_t pitch[2] = {row_bytes, row_bytes * rows};
    uint32_t box[3] = {(uint32_t)map->box_columns, (uint32_t)map->box_rows, 1};
    uint32_t steps[3] = {1, 1, 1}, rank = map->matrices ? 3 : 2;
    void *base = (void *)(uintptr_t)place_of(model, on, &map->base);
    TRY("cuTensorMapEncodeTiled", cu.map_encode(&on->maps[i], map->type, rank, base, extents, pitch,
                                                box, steps, 0, SWIZZLE_128B, PROMOTE_128B, 0));
  }
  return TW_OK;
}

enum { MOST_ARGUMENTS = 128 };

static int32_t start(const tw_cuda_model *model, instance *on, const tw_cuda_launch *launch,
                     void *stream) {
  const tw_cuda_argument *given = model->arguments + launch->first;
  if (launch->kernel < 0) { /* a copy: to, from, bytes */
    TRY("cuMemcpyDtoD", cu.copy(place_of(model, on, &given[0]), place_of(model, on, &given[1]),
                                (size_t)given[2].value, stream));
    return TW_OK;
  }
  address values[MOST_ARGUMENTS];
  void *pointers[MOST_ARGUMENTS];
  if (launch->n_arguments > MOST_ARGUMENTS) {
    return tw_errorf(TW_ERROR_INTERNAL, "a kernel takes %d arguments", launch->n_arguments);
  }
  for (int32_t i = 0; i < launch->n_arguments; ++i) {
    values[i] = place_of(model, on, &given[i]);
    pointers[i] = given[i].kind == TW_CUDA_MAP ? (void *)&on->maps[given[i].value] : &values[i];
  }
  const uint32_t *grid = launch->grid, *block = launch->block;
  TRY(model->kernels[launch->kernel].name,
      cu.launch(on->kernels[launch->kernel], grid[0], grid[1], grid[2], block[0], block[1],
                block[2], (unsigned)model->kernels[launch->kernel].shared_bytes, stream, pointers,
                NULL));
  return TW_OK;
}

/* Where a launch is recorded: behind the last one that it waits for, else where nothing is, else
 * behind what has been there for longest. `tails` has the last launch of each branch, or -1. */
static int32_t branch_of(const int32_t tails[BRANCHES], const int32_t *waits, int32_t n_waits) {
  int32_t best = -1, oldest = 0;
  for (int32_t i = 0; i < BRANCHES; ++i) {
    for (int32_t j = 0; j < n_waits; ++j) {
      if (tails[i] == waits[j] && (best < 0 || tails[i] > tails[best])) best = i;
    }
    if (tails[i] < tails[oldest]) oldest = i;
  }
  return best >= 0 ? best : oldest; /* one where nothing is has the least tail */
}

/* `events` has one for each launch, and one before all. */
static int32_t record_all(const tw_cuda_model *model, instance *on, void **events, int32_t *at) {
  int32_t tails[BRANCHES], count = model->n_launches;
  for (int32_t i = 0; i < BRANCHES; ++i) tails[i] = -1;
  TRY("cuEventRecord", cu.event_record(events[count], on->stream));
  for (int32_t i = 0; i < count; ++i) {
    const tw_cuda_launch *launch = &model->launches[i];
    const int32_t *waits = model->waits + launch->first_wait;
    int32_t own = at[i] = branch_of(tails, waits, launch->n_waits);
    void *stream = on->branches[own];
    if (own && tails[own] < 0) {
      TRY("cuStreamWaitEvent", cu.stream_wait_event(stream, events[count], 0));
    }
    for (int32_t j = 0; j < launch->n_waits; ++j) {
      if (at[waits[j]] == own) continue;
      TRY("cuStreamWaitEvent", cu.stream_wait_event(stream, events[waits[j]], 0));
    }
    int32_t code = start(model, on, launch, stream);
    if (code != TW_OK) return code;
    TRY("cuEventRecord", cu.event_record(events[i], stream));
    tails[own] = i;
  }
  for (int32_t i = 1; i < BRANCHES; ++i) {
    if (tails[i] < 0) continue;
    TRY("cuStreamWaitEvent", cu.stream_wait_event(on->stream, events[tails[i]], 0));
  }
  return TW_OK;
}

/* All launches as one graph, for the addresses that are bound. */
static int32_t record(const tw_cuda_model *model, instance *on) {
  if (on->graph) cu.graph_exec_free(on->graph);
  on->graph = NULL;
  int32_t code = encode_maps(model, on), made = 0;
  if (code != TW_OK) return code;
  size_t count = (size_t)model->n_launches + 1;
  void **events = calloc(count, sizeof *events), *graph = NULL;
  int32_t *at = calloc(count, sizeof *at);
  if (!events || !at) code = tw_error(TW_ERROR_NO_MEMORY, "no memory for a graph");
  for (; code == TW_OK && made < (int32_t)count; ++made) {
    result created = cu.event_create(&events[made], NO_TIMING);
    if (created != 0) code = refused("cuEventCreate", created);
  }
  if (code == TW_OK) {
    result begun = cu.capture_begin(on->stream, CAPTURE_THREAD_LOCAL);
    if (begun != 0) code = refused("cuStreamBeginCapture", begun);
  }
  if (code == TW_OK) {
    code = record_all(model, on, events, at);
    result ended = cu.capture_end(on->stream, &graph);
    if (code == TW_OK && ended != 0) code = refused("cuStreamEndCapture", ended);
  }
  if (code == TW_OK) {
    result built = cu.graph_make(&on->graph, graph, 0);
    if (built != 0) code = refused("cuGraphInstantiate", built);
  }
  if (graph) cu.graph_free(graph);
  for (int32_t i = 0; i < made; ++i) {
    if (events[i]) cu.event_destroy(events[i]);
  }
  free(events);
  free(at);
  return code;
}

static bool is_on_gpu(const void *data) {
  unsigned kind = 0;
  result code = cu.pointer_attribute(&kind, POINTER_MEMORY_TYPE, (address)(uintptr_t)data);
  return code == 0 && kind == MEMORY_OF_DEVICE;
}

/* Where the graph finds a tensor: where it is, or in memory of ours that it is copied through. */
static int32_t bind(instance *on, int32_t at, const void *data, int64_t size_bytes,
                    address *found) {
  if (is_on_gpu(data)) {
    *found = (address)(uintptr_t)data;
    return TW_OK;
  }
  int32_t code = on->staged[at] ? TW_OK : allocate(&on->staged[at], size_bytes);
  *found = on->staged[at];
  return code;
}

static int32_t run_locked(const tw_cuda_model *model, instance *on, const void *const *inputs,
                          void *const *outputs) {
  int32_t tensors = model->n_inputs + model->n_outputs;
  int32_t code = prepare(model, on);
  bool is_new = !on->graph;
  for (int32_t i = 0; i < tensors && code == TW_OK; ++i) {
    const void *data = i < model->n_inputs ? inputs[i] : outputs[i - model->n_inputs];
    address found = 0;
    code = bind(on, i, data, model->tensor_bytes[i], &found);
    is_new |= on->bound[i] != found;
    on->bound[i] = found;
  }
  if (code == TW_OK && is_new) code = record(model, on);
  if (code != TW_OK) return code;
  for (int32_t i = 0; i < model->n_inputs; ++i) {
    if (on->bound[i] != on->staged[i] || !model->tensor_bytes[i]) continue;
    TRY("cuMemcpyHtoD",
        cu.copy_in(on->bound[i], inputs[i], (size_t)model->tensor_bytes[i], on->stream));
  }
  TRY("cuGraphLaunch", cu.graph_launch(on->graph, on->stream));
  for (int32_t i = 0; i < model->n_outputs; ++i) {
    int32_t at = model->n_inputs + i;
    if (on->bound[at] != on->staged[at] || !model->tensor_bytes[at]) continue;
    TRY("cuMemcpyDtoH",
        cu.copy_out(outputs[i], on->bound[at], (size_t)model->tensor_bytes[at], on->stream));
  }
  TRY("cuStreamSynchronize", cu.stream_wait(on->stream));
  return TW_OK;
}

enum { MOST_TENSORS = 256 };

int32_t tw_cuda_run(tw_call *call, const tw_cuda_model *model, const DLTensor *const *inputs,
                    int32_t n_inputs) {
  const void *given[MOST_TENSORS];
  void *wanted[MOST_TENSORS];
  if (n_inputs != model->n_inputs || n_inputs + model->n_outputs > MOST_TENSORS) {
    return tw_errorf(TW_ERROR_ARGUMENTS, "the model takes %d inputs, got %d", model->n_inputs,
                     n_inputs);
  }
  for (int32_t i = 0; i < n_inputs; ++i) {
    given[i] = (const char *)inputs[i]->data + inputs[i]->byte_offset;
  }
  const int64_t *shape = model->output_shapes;
  for (int32_t i = 0; i < model->n_outputs; ++i) {
    wanted[i] = call->output(call, i, model->output_ranks[i], shape);
    if (!wanted[i]) return tw_last_code();
    shape += model->output_ranks[i];
  }
  int32_t code = open_driver();
  if (code != TW_OK) return code;
  instance *on = instance_of(model);
  if (!on) return TW_ERROR_NO_MEMORY;
  void *before = NULL; /* the caller's context stays the caller's */
  cu.context_get(&before);
  result entered = cu.context_set(primary);
  if (entered != 0) return refused("cuCtxSetCurrent", entered);
  pthread_mutex_lock(&on->lock);
  code = run_locked(model, on, given, wanted);
  pthread_mutex_unlock(&on->lock);
  cu.context_set(before);
  return code;
}
