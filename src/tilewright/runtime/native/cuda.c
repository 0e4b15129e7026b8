/* Models on an NVIDIA GPU: kernels, arena and launches, by the CUDA driver.
 *
 * Nothing of CUDA is needed to build this. The driver's library is opened by the first call; a
 * machine without one gets TW_ERROR_NO_DRIVER. The launches of a model are data (`tw_cuda_model`),
 * for each set of sizes recorded once as a CUDA graph for the addresses that a call brings, and
 * started together from then on. Tensors of the host are copied; those of the GPU are used where
 * they are. A kernel that waits by itself for those before it starts before they have ended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

/* The driver's interface, as far as it is used here: handles are pointers, addresses 64 bits. */
typedef int result;
typedef uint64_t address;
typedef struct {
  _Alignas(64) uint64_t words[16];
} tensor_map;
typedef struct {
  int id;
  char padding[4];
  union {
    int flag;
    char bytes[64];
  } value;
} launch_attribute;
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  launch_attribute *attributes;
  unsigned n_attributes;
} launch_config;

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
  NO_TIMING = 2,   /* CU_EVENT_DISABLE_TIMING */
  START_EARLY = 6, /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
  TOGETHER = 2,    /* CU_LAUNCH_ATTRIBUTE_COOPERATIVE */
  BRANCHES = 8     /* launches side by side, at most */
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
  result (*fill)(address, unsigned char, size_t, void *);
  result (*pointer_attribute)(void *, int, address);
  result (*module_load)(void **, const void *);
  result (*module_unload)(void *);
  result (*module_function)(void **, void *, const char *);
  result (*function_set)(void *, int, int);
  result (*launch)(const launch_config *, void *, void **, void **);
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
    {"cuMemsetD8Async", (void **)&cu.fill},
    {"cuPointerGetAttribute", (void **)&cu.pointer_attribute},
    {"cuModuleLoadData", (void **)&cu.module_load},
    {"cuModuleUnload", (void **)&cu.module_unload},
    {"cuModuleGetFunction", (void **)&cu.module_function},
    {"cuFuncSetAttribute", (void **)&cu.function_set},
    {"cuLaunchKernelEx", (void **)&cu.launch},
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
  address *bound; /* of inputs, then outputs: the addresses that the graph is recorded for */
  tensor_map *maps;
  void *graph;
} recorded;

typedef struct {
  pthread_mutex_t lock; /* one call at a time: there is one arena */
  bool is_ready;
  void **modules, **kernels;
  address weights, arena;
  address *staged; /* inputs, then outputs: room for tensors of the host; 0 until needed */
  recorded *variants;
  void *stream;
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

/* Memory for all that a model keeps, or NULL. */
static instance *new_instance(const tw_cuda_model *model) {
  size_t tensors = (size_t)(model->n_inputs + model->n_outputs), n = (size_t)model->n_variants;
  instance *made = calloc(1, sizeof *made);
  void **tables = calloc((size_t)(model->n_modules + model->n_kernels + 1), sizeof *tables);
  address *places = calloc((n + 1) * (tensors + 1), sizeof *places);
  recorded *variants = calloc(n, sizeof *variants);
  bool is_whole = made && tables && places && variants;
  for (size_t i = 0; i < n && is_whole; ++i) {
    size_t size = ((size_t)model->variants[i].n_maps + 1) * sizeof(tensor_map);
    is_whole = posix_memalign((void **)&variants[i].maps, 64, size) == 0;
    variants[i].bound = places + (i + 1) * (tensors + 1);
  }
  if (!is_whole) {
    for (size_t i = 0; i < n && variants; ++i) free(variants[i].maps);
    free(made);
    free(tables);
    free(places);
    free(variants);
    return NULL;
  }
  pthread_mutex_init(&made->lock, NULL);
  made->modules = tables;
  made->kernels = tables + model->n_modules;
  made->staged = places;
  made->variants = variants;
  return made;
}

static instance *instance_of(const tw_cuda_model *model) {
  pthread_mutex_lock(&opening);
  instance *found = *model->instance;
  if (!found) {
    found = *model->instance = new_instance(model);
    if (!found) tw_error(TW_ERROR_NO_MEMORY, "no memory for a model");
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
  if (model->arena_bytes) { /* blocks that wait for each other count from zero */
    TRY("cuMemsetD8Async", cu.fill(on->arena, 0, (size_t)model->arena_bytes, on->stream));
  }
  TRY("cuStreamSynchronize", cu.stream_wait(on->stream));
  on->is_ready = true;
  return TW_OK;
}

static address place_of(const tw_cuda_model *model, const instance *on, const recorded *own,
                        const tw_cuda_argument *argument) {
  switch (argument->kind) {
    case TW_CUDA_ARENA: return on->arena + (address)argument->value;
    case TW_CUDA_WEIGHT: return on->weights + (address)argument->value;
    case TW_CUDA_INPUT: return own->bound[argument->value];
    case TW_CUDA_OUTPUT: return own->bound[model->n_inputs + argument->value];
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

/* What the launches of a set of sizes are recorded from. */
typedef struct {
  const tw_cuda_model *model;
  const tw_cuda_variant *variant;
  instance *on;
  recorded *own;
} recording;

static int32_t encode_maps(const recording *of) {
  for (int32_t i = 0; i < of->variant->n_maps; ++i) {
    const tw_cuda_map *map = &of->variant->maps[i];
    if (map->channels) {
      void *image = (void *)(uintptr_t)place_of(of->model, of->on, of->own, &map->base);
      int32_t status = encode_windows(map, image, &of->own->maps[i]);
      if (status != TW_OK) return status;
      continue;
    }
    uint64_t columns = (uint64_t)map->columns, rows = (uint64_t)map->rows;
    uint64_t extents[3] = {columns, rows, (uint64_t)map->matrices};
    uint64_t row_bytes = columns * (uint64_t)map->element_bytes;
    uint64_t pitch[2] = {row_bytes, row_bytes * rows};
    uint32_t box[3] = {(uint32_t)map->box_columns, (uint32_t)map->box_rows, 1};
    uint32_t steps[3] = {1, 1, 1}, rank = map->matrices ? 3 : 2;
    void *base = (void *)(uintptr_t)place_of(of->model, of->on, of->own, &map->base);
    TRY("cuTensorMapEncodeTiled",
        cu.map_encode(&of->own->maps[i], map->type, rank, base, extents, pitch, box, steps, 0,
                      SWIZZLE_128B, PROMOTE_128B, 0));
  }
  return TW_OK;
}

enum { MOST_ARGUMENTS = 128 };

static int32_t start(const recording *of, const tw_cuda_launch *launch, void *stream,
                     bool is_early) {
  const tw_cuda_argument *given = of->variant->arguments + launch->first;
  address values[MOST_ARGUMENTS];
  void *pointers[MOST_ARGUMENTS];
  if (launch->n_arguments > MOST_ARGUMENTS) {
    return tw_errorf(TW_ERROR_INTERNAL, "a kernel takes %d arguments", launch->n_arguments);
  }
  for (int32_t i = 0; i < launch->n_arguments; ++i) {
    bool is_map = given[i].kind == TW_CUDA_MAP;
    values[i] = place_of(of->model, of->on, of->own, &given[i]);
    pointers[i] = is_map ? (void *)&of->own->maps[given[i].value] : &values[i];
  }
  if (launch->kernel < 0) { /* a copy: to, from, bytes */
    TRY("cuMemcpyDtoD", cu.copy(values[0], values[1], (size_t)values[2], stream));
    return TW_OK;
  }
  const tw_cuda_kernel *kernel = &of->model->kernels[launch->kernel];
  launch_attribute how[2] = {{.value.flag = 1}, {.value.flag = 1}};
  launch_config config = {
      .shared_bytes = (unsigned)kernel->shared_bytes, .stream = stream, .attributes = how};
  if (is_early) how[config.n_attributes++].id = START_EARLY;
  if (launch->is_together) how[config.n_attributes++].id = TOGETHER;
  memcpy(config.grid, launch->grid, sizeof config.grid);
  memcpy(config.block, launch->block, sizeof config.block);
  TRY(kernel->name, cu.launch(&config, of->on->kernels[launch->kernel], pointers, NULL));
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

/* `events` has one for each launch, and one before all. A launch that waits for the last one of its
 * own branch alone may start early. */
static int32_t record_all(const recording *of, void **events, int32_t *at) {
  int32_t tails[BRANCHES], count = of->variant->n_launches;
  void *stream = of->on->stream;
  for (int32_t i = 0; i < BRANCHES; ++i) tails[i] = -1;
  TRY("cuEventRecord", cu.event_record(events[count], stream));
  for (int32_t i = 0; i < count; ++i) {
    const tw_cuda_launch *launch = &of->variant->launches[i];
    const int32_t *waits = of->variant->waits + launch->first_wait;
    int32_t own = at[i] = branch_of(tails, waits, launch->n_waits);
    bool follows = tails[own] >= 0 && of->variant->launches[tails[own]].kernel >= 0;
    stream = of->on->branches[own];
    if (own && tails[own] < 0) {
      TRY("cuStreamWaitEvent", cu.stream_wait_event(stream, events[count], 0));
    }
    for (int32_t j = 0; j < launch->n_waits; ++j) {
      if (at[waits[j]] == own) continue;
      follows = false;
      TRY("cuStreamWaitEvent", cu.stream_wait_event(stream, events[waits[j]], 0));
    }
    int32_t code = start(of, launch, stream, follows && launch->starts_early);
    if (code != TW_OK) return code;
    TRY("cuEventRecord", cu.event_record(events[i], stream));
    tails[own] = i;
  }
  for (int32_t i = 1; i < BRANCHES; ++i) {
    if (tails[i] < 0) continue;
    TRY("cuStreamWaitEvent", cu.stream_wait_event(of->on->stream, events[tails[i]], 0));
  }
  return TW_OK;
}

/* All launches as one graph, for the addresses that are bound. */
static int32_t record(const recording *of) {
  void **kept = &of->own->graph, *stream = of->on->stream;
  if (*kept) cu.graph_exec_free(*kept);
  *kept = NULL;
  int32_t code = encode_maps(of), made = 0;
  if (code != TW_OK) return code;
  size_t count = (size_t)of->variant->n_launches + 1;
  void **events = calloc(count, sizeof *events), *graph = NULL;
  int32_t *at = calloc(count, sizeof *at);
  if (!events || !at) code = tw_error(TW_ERROR_NO_MEMORY, "no memory for a graph");
  for (; code == TW_OK && made < (int32_t)count; ++made) {
    result created = cu.event_create(&events[made], NO_TIMING);
    if (created != 0) code = refused("cuEventCreate", created);
  }
  if (code == TW_OK) {
    result begun = cu.capture_begin(stream, CAPTURE_THREAD_LOCAL);
    if (begun != 0) code = refused("cuStreamBeginCapture", begun);
  }
  if (code == TW_OK) {
    code = record_all(of, events, at);
    result ended = cu.capture_end(stream, &graph);
    if (code == TW_OK && ended != 0) code = refused("cuStreamEndCapture", ended);
  }
  if (code == TW_OK) {
    result built = cu.graph_make(kept, graph, 0);
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

/* The bytes of a tensor for the sizes that need most. */
static int64_t most_bytes(const tw_cuda_model *model, int32_t at) {
  int64_t most = 0;
  for (int32_t i = 0; i < model->n_variants; ++i) {
    int64_t size = model->variants[i].tensor_bytes[at];
    if (size > most) most = size;
  }
  return most;
}

/* Where the graph finds a tensor: where it is, or in memory of ours that it is copied through. */
static int32_t bind(const recording *of, int32_t at, const void *data, address *found) {
  if (is_on_gpu(data)) {
    *found = (address)(uintptr_t)data;
    return TW_OK;
  }
  address *staged = &of->on->staged[at];
  int32_t code = *staged ? TW_OK : allocate(staged, most_bytes(of->model, at));
  *found = *staged;
  return code;
}

static int32_t run_locked(const recording *of, const void *const *inputs, void *const *outputs) {
  int32_t n_inputs = of->model->n_inputs, n_outputs = of->model->n_outputs;
  instance *on = of->on;
  address *bound = of->own->bound;
  int32_t code = prepare(of->model, on);
  bool is_new = !of->own->graph;
  for (int32_t i = 0; i < n_inputs + n_outputs && code == TW_OK; ++i) {
    const void *data = i < n_inputs ? inputs[i] : outputs[i - n_inputs];
    address found = 0;
    code = bind(of, i, data, &found);
    is_new |= bound[i] != found;
    bound[i] = found;
  }
  if (code == TW_OK && is_new) code = record(of);
  if (code != TW_OK) return code;
  const int64_t *bytes = of->variant->tensor_bytes;
  for (int32_t i = 0; i < n_inputs; ++i) {
    if (bound[i] != on->staged[i] || !bytes[i]) continue;
    TRY("cuMemcpyHtoD", cu.copy_in(bound[i], inputs[i], (size_t)bytes[i], on->stream));
  }
  TRY("cuGraphLaunch", cu.graph_launch(of->own->graph, on->stream));
  for (int32_t i = 0; i < n_outputs; ++i) {
    int32_t at = n_inputs + i;
    if (bound[at] != on->staged[at] || !bytes[at]) continue;
    TRY("cuMemcpyDtoH", cu.copy_out(outputs[i], bound[at], (size_t)bytes[at], on->stream));
  }
  TRY("cuStreamSynchronize", cu.stream_wait(on->stream));
  return TW_OK;
}

/* The variant that was saved for the sizes of a call's inputs, or -1. */
static int32_t variant_of(const tw_cuda_model *model, const DLTensor *const *inputs) {
  for (int32_t i = 0; i < model->n_variants; ++i) {
    bool is_same = true;
    for (int32_t j = 0; j < model->n_sizes; ++j) {
      const tw_cuda_size *size = &model->sizes[j];
      is_same &= inputs[size->input]->shape[size->dimension] == model->variants[i].sizes[j];
    }
    if (is_same) return i;
  }
  return -1;
}

static int32_t no_variant(const tw_cuda_model *model, const DLTensor *const *inputs) {
  char text[256] = "";
  size_t used = 0;
  for (int32_t j = 0; j < model->n_sizes && used < sizeof text; ++j) {
    const tw_cuda_size *size = &model->sizes[j];
    int64_t extent = inputs[size->input]->shape[size->dimension];
    int written = snprintf(text + used, sizeof text - used, "%s%s = %" PRId64, j ? ", " : "",
                           size->name, extent);
    used += written > 0 ? (size_t)written : 0;
  }
  return tw_errorf(TW_ERROR_SHAPE, "the model was not saved for %s", text);
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
  int32_t chosen = variant_of(model, inputs);
  if (chosen < 0) return no_variant(model, inputs);
  const tw_cuda_variant *variant = &model->variants[chosen];
  for (int32_t i = 0; i < n_inputs; ++i) {
    given[i] = (const char *)inputs[i]->data + inputs[i]->byte_offset;
  }
  const int64_t *shape = variant->output_shapes;
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
  recording of = {model, variant, on, &on->variants[chosen]};
  pthread_mutex_lock(&on->lock);
  code = run_locked(&of, given, wanted);
  pthread_mutex_unlock(&on->lock);
  cu.context_set(before);
  return code;
}
