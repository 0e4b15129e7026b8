/* Run models on an NVIDIA GPU through the CUDA driver API: kernels, arena and launches.
 *
 * The launches of a model are data (`tw_cuda_model`); for each set of sizes they are captured once
 * as a CUDA graph for the addresses of a call, and launched as a whole from then on. For other
 * addresses the kernels that use them get new arguments in the same graph. Data-dependent
 * control flow is a conditional node of the graph; where the driver has none, the host decides
 * between several graphs. Tensors in host memory are copied; those on the GPU are used in place. A
 * kernel with its own wait for its predecessors starts before they have ended.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"
#include "tilewright.h"

enum {
  POINTER_MEMORY_TYPE = 2, /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
  POINTER_ORDINAL = 9,     /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
  MEMORY_OF_DEVICE = 2,    /* CU_MEMORYTYPE_DEVICE */
  ACCESS_BYTES = 16,       /* of the widest access of kernels */
  CAPTURE_THREAD_LOCAL = 1,
  MAX_DYNAMIC_SHARED = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
  SHARED_BY_DEFAULT = 48 * 1024,
  STATIC_SHARED = 4096, /* static shared memory of kernels that also use dynamic, at most */
  SWIZZLE_128B = 3,
  PROMOTE_128B = 2,
  NO_TIMING = 2,     /* CU_EVENT_DISABLE_TIMING */
  START_EARLY = 6,   /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
  TOGETHER = 2,      /* CU_LAUNCH_ATTRIBUTE_COOPERATIVE */
  CONDITIONAL = 13,  /* CU_GRAPH_NODE_TYPE_CONDITIONAL */
  REPLACE_WAITS = 1, /* CU_STREAM_SET_CAPTURE_DEPENDENCIES */
  BRANCHES = 8       /* parallel branches, at most */
};

typedef struct {
  address *bound; /* inputs, then outputs: the addresses that the graph was captured for */
  tensor_map *maps;
  void **graphs; /* by the first launch of each */
  void **nodes;  /* by launch, where they can be changed */
  void *source;  /* the graph that has them */
  bool is_whole;
} recorded;

enum decider { CHOOSE, BEGIN, AGAIN, DECIDERS };
static const char *const decider_names[DECIDERS] = {"choose", "begin", "again"};
enum condition { RUNS_ONCE, RUNS_AGAIN }; /* CUgraphConditionalNodeType */

typedef struct instance {
  const tw_cuda_model *model;
  struct instance *next; /* list of this library's instances */
  pthread_mutex_t lock;  /* serializes calls: there is one arena */
  bool is_ready;
  void **modules, **kernels;
  void *deciding, *deciders[DECIDERS]; /* the module of deciding kernels, and the kernels */
  address weights, arena;
  address *staged; /* staging buffers for host tensors: inputs, then outputs; 0 until needed */
  recorded *variants;
  void *stream;
  void *branches[BRANCHES]; /* streams for capture, `stream` the first */
  void *done;               /* recorded at the end of calls on callers' streams */
  bool is_behind;           /* such a call may still be running */
} instance;

static _Thread_local struct {
  bool is_given;
  void *stream;
} callers; /* streams of this thread's callers */

void tw_cuda_enter(void *stream) {
  callers.is_given = true;
  callers.stream = stream;
}

void tw_cuda_leave(void) { callers.is_given = false; }

static int32_t allocate(address *made, int64_t size_bytes) {
  size_t size = size_bytes > 0 ? (size_t)size_bytes : 1, left = 0, all = 0;
  if (tw_cu.memory_alloc(made, size) == 0) return TW_OK;
  *made = 0;
  tw_cu.memory_info(&left, &all);
  return tw_errorf(TW_ERROR_NO_MEMORY,
                   "%zu bytes of device memory were asked for, %zu of %zu are free", size, left,
                   all);
}

/* Allocate an instance, or NULL. */
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
    variants[i].graphs = calloc((size_t)model->variants[i].n_launches + 1, sizeof(void *));
    variants[i].nodes = calloc((size_t)model->variants[i].n_launches + 1, sizeof(void *));
    is_whole = is_whole && variants[i].graphs && variants[i].nodes;
  }
  if (!is_whole) {
    for (size_t i = 0; i < n && variants; ++i) {
      free(variants[i].maps);
      free(variants[i].graphs);
      free(variants[i].nodes);
    }
    free(made);
    free(tables);
    free(places);
    free(variants);
    return NULL;
  }
  pthread_mutex_init(&made->lock, NULL);
  made->model = model;
  made->modules = tables;
  made->kernels = tables + model->n_modules;
  made->staged = places;
  made->variants = variants;
  return made;
}

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* guards creation of instances */
static instance *instances;

static instance *instance_of(const tw_cuda_model *model) {
  pthread_mutex_lock(&making);
  instance *found = *model->instance;
  if (!found) {
    found = *model->instance = new_instance(model);
    if (found) {
      found->next = instances;
      instances = found;
    } else {
      tw_error(TW_ERROR_NO_MEMORY, "no memory for a model");
    }
  }
  pthread_mutex_unlock(&making);
  return found;
}

/* Release the graphs, kernels and memory of an unused instance, which may be partly initialized. */
static void give_back(const instance *on) {
  const tw_cuda_model *model = on->model;
  if (on->is_behind) tw_cu.event_wait(on->done);
  for (int32_t i = 0; i < model->n_variants; ++i) {
    for (int32_t j = 0; j < model->variants[i].n_launches; ++j) {
      if (on->variants[i].graphs[j]) tw_cu.graph_exec_free(on->variants[i].graphs[j]);
    }
    if (on->variants[i].source) tw_cu.graph_free(on->variants[i].source);
  }
  for (int32_t i = 0; i < model->n_inputs + model->n_outputs; ++i) {
    if (on->staged[i]) tw_cu.memory_free(on->staged[i]);
  }
  if (on->weights) tw_cu.memory_free(on->weights);
  if (on->arena) tw_cu.memory_free(on->arena);
  for (int32_t i = 0; i < model->n_modules; ++i) {
    if (on->modules[i]) tw_cu.module_unload(on->modules[i]);
  }
  if (on->deciding) tw_cu.module_unload(on->deciding);
  if (on->done) tw_cu.event_destroy(on->done);
  for (int32_t i = 0; i < BRANCHES; ++i) {
    if (on->branches[i]) tw_cu.stream_destroy(on->branches[i]);
  }
}

static void free_instance(instance *on) {
  for (int32_t i = 0; i < on->model->n_variants; ++i) {
    free(on->variants[i].maps);
    free(on->variants[i].graphs);
    free(on->variants[i].nodes);
  }
  free(on->modules);
  free(on->staged);
  free(on->variants);
  pthread_mutex_destroy(&on->lock);
  free(on);
}

/* On unloading of the library. If the driver was shut down before, as at process exit, entering the
 * context fails and there is nothing to release. Instances in use by another thread are leaked. */
__attribute__((destructor)) static void unload(void) {
  void *before = NULL;
  bool can_enter = tw_cuda_context && !tw_cuda_check() && tw_cu.context_get(&before) == 0 &&
                   tw_cu.context_set(tw_cuda_context) == 0;
  bool is_used = false;
  for (instance *on = instances, *next = NULL; on; on = next) {
    next = on->next;
    if (pthread_mutex_trylock(&on->lock)) {
      is_used = true;
      continue;
    }
    pthread_mutex_unlock(&on->lock);
    if (can_enter) give_back(on);
    free_instance(on);
  }
  instances = NULL;
  if (!can_enter) return;
  tw_cu.context_set(before);
  if (!is_used) tw_cuda_close();
}

/* Create kernels, weights and arena; after a failure, what exists is kept. */
static int32_t prepare(const tw_cuda_model *model, instance *on) {
  if (on->is_ready) return TW_OK;
  for (int32_t i = 0; i < BRANCHES; ++i) {
    if (!on->branches[i]) TRY("cuStreamCreate", tw_cu.stream_create(&on->branches[i], 0));
  }
  on->stream = on->branches[0];
  if (!on->done) TRY("cuEventCreate", tw_cu.event_create(&on->done, NO_TIMING));
  for (int32_t i = 0; i < model->n_modules; ++i) {
    if (!on->modules[i]) {
      TRY("cuModuleLoadData", tw_cu.module_load(&on->modules[i], model->ptx[i]));
    }
  }
  for (int32_t i = 0; i < model->n_kernels; ++i) {
    const tw_cuda_kernel *kernel = &model->kernels[i];
    TRY("cuModuleGetFunction",
        tw_cu.module_function(&on->kernels[i], on->modules[kernel->module], kernel->name));
    if (kernel->shared_bytes + STATIC_SHARED > SHARED_BY_DEFAULT) {
      TRY("cuFuncSetAttribute",
          tw_cu.function_set(on->kernels[i], MAX_DYNAMIC_SHARED, kernel->shared_bytes));
    }
  }
  if (model->deciding && tw_cuda_has_conditions() && !on->deciding) {
    TRY("cuModuleLoadData", tw_cu.module_load(&on->deciding, model->deciding));
  }
  for (int32_t i = 0; i < DECIDERS && on->deciding; ++i) {
    TRY("cuModuleGetFunction",
        tw_cu.module_function(&on->deciders[i], on->deciding, decider_names[i]));
  }
  int32_t code = TW_OK;
  if (!on->weights && (code = allocate(&on->weights, model->weights_bytes))) return code;
  if (!on->arena && (code = allocate(&on->arena, model->arena_bytes))) return code;
  if (model->weights_bytes) {
    TRY("cuMemcpyHtoD",
        tw_cu.copy_in(on->weights, model->weights, (size_t)model->weights_bytes, on->stream));
  }
  if (model->arena_bytes) { /* counters of grid barriers start at zero */
    TRY("cuMemsetD8Async", tw_cu.fill(on->arena, 0, (size_t)model->arena_bytes, on->stream));
  }
  TRY("cuStreamSynchronize", tw_cu.stream_wait(on->stream));
  on->is_ready = true;
  return TW_OK;
}

static address place_of(const tw_cuda_model *model, const instance *on, const recorded *own,
                        const tw_cuda_argument *argument) {
  switch (argument->kind) {
    case TW_CUDA_ARENA: return on->arena + (address)argument->value;
    case TW_CUDA_WEIGHT: return on->weights + (address)argument->value;
    case TW_CUDA_INPUT: return own->bound[argument->which] + (address)argument->value;
    case TW_CUDA_OUTPUT:
      return own->bound[model->n_inputs + argument->which] + (address)argument->value;
    default: return (address)argument->value;
  }
}

/* im2col maps of images; sizes are innermost first. */
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
      tw_cu.window_encode(made, map->type, 4, base, extents, pitch, lower, upper,
                          (uint32_t)map->box_columns, (uint32_t)map->box_rows, steps, 0,
                          SWIZZLE_128B, PROMOTE_128B, 0));
  return TW_OK;
}

/* Rows in groups of 32; axes of a group are e, q, j, innermost first. */
static int32_t encode_reordered(const tw_cuda_map *map, void *base, tensor_map *made) {
  uint64_t row_bytes = (uint64_t)map->columns * (uint64_t)map->element_bytes;
  uint64_t extents[5] = {(uint64_t)map->columns, 2, 4, 4, (uint64_t)map->rows / 32};
  uint64_t pitch[4] = {row_bytes, 8 * row_bytes, 2 * row_bytes, 32 * row_bytes};
  uint32_t box[5] = {(uint32_t)map->box_columns, 2, 4, 4, (uint32_t)map->box_rows / 32};
  uint32_t steps[5] = {1, 1, 1, 1, 1};
  TRY("cuTensorMapEncodeTiled", tw_cu.map_encode(made, map->type, 5, base, extents, pitch, box,
                                                 steps, 0, SWIZZLE_128B, PROMOTE_128B, 0));
  return TW_OK;
}

/* The inputs of capturing the launches for a set of sizes. */
typedef struct {
  const tw_cuda_model *model;
  const tw_cuda_variant *variant;
  instance *on;
  recorded *own;
  void *stream; /* that graphs are launched on */
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
    if (map->is_reordered) {
      void *matrix = (void *)(uintptr_t)place_of(of->model, of->on, of->own, &map->base);
      int32_t status = encode_reordered(map, matrix, &of->own->maps[i]);
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
        tw_cu.map_encode(&of->own->maps[i], map->type, rank, base, extents, pitch, box, steps, 0,
                         SWIZZLE_128B, PROMOTE_128B, 0));
  }
  return TW_OK;
}

enum { MAX_ARGUMENTS = 128, MAX_TENSORS = 256 };

static bool is_decision(const tw_cuda_launch *launch) { return launch->kernel < TW_CUDA_COPY; }

/* The arguments of a launch in the driver's form: `pointers` to maps or `values`. */
static int32_t resolve(const recording *of, const tw_cuda_launch *launch, address *values,
                       void **pointers) {
  const tw_cuda_argument *given = of->variant->arguments + launch->first;
  if (launch->n_arguments > MAX_ARGUMENTS) {
    return tw_errorf(TW_ERROR_INTERNAL, "a kernel takes %d arguments", launch->n_arguments);
  }
  for (int32_t i = 0; i < launch->n_arguments; ++i) {
    bool is_map = given[i].kind == TW_CUDA_MAP;
    values[i] = place_of(of->model, of->on, of->own, &given[i]);
    pointers[i] = is_map ? (void *)&of->own->maps[given[i].value] : &values[i];
  }
  return TW_OK;
}

static int32_t record_decision(const recording *of, const tw_cuda_launch *launch, address *values,
                               void *stream);

static int32_t start(const recording *of, const tw_cuda_launch *launch, void *stream,
                     bool is_early) {
  address values[MAX_ARGUMENTS];
  void *pointers[MAX_ARGUMENTS];
  int32_t code = resolve(of, launch, values, pointers);
  if (code != TW_OK) return code;
  if (is_decision(launch)) return record_decision(of, launch, values, stream);
  if (launch->kernel == TW_CUDA_COPY) {
    TRY("cuMemcpyDtoD", tw_cu.copy(values[0], values[1], (size_t)values[2], stream));
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
  TRY(kernel->name, tw_cu.launch(&config, of->on->kernels[launch->kernel], pointers, NULL));
  return TW_OK;
}

/* ---- conditional nodes: decisions on the GPU ---- */

enum { MAX_DECIDER_ARGUMENTS = 7 };

/* Enqueue a kernel that sets handles: their numbers come first, then `n` values. */
static int32_t decide(const recording *of, enum decider which, const uint64_t *handles,
                      int32_t n_handles, const address *values, int32_t n, void *stream) {
  address given[MAX_DECIDER_ARGUMENTS];
  void *pointers[MAX_DECIDER_ARGUMENTS];
  launch_config config = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream};
  for (int32_t i = 0; i < n_handles + n; ++i) {
    given[i] = i < n_handles ? handles[i] : values[i - n_handles];
    pointers[i] = &given[i];
  }
  TRY(decider_names[which], tw_cu.launch(&config, of->on->deciders[which], pointers, NULL));
  return TW_OK;
}

/* Create a handle in the graph being captured. */
static int32_t new_handle(void *stream, uint64_t *made) {
  int status = 0;
  void *graph = NULL;
  TRY("cuStreamGetCaptureInfo",
      tw_cu.capture_info(stream, &status, NULL, &graph, NULL, NULL, NULL));
  TRY("cuGraphConditionalHandleCreate", tw_cu.condition_create(made, graph, tw_cuda_context, 0, 0));
  return TW_OK;
}

/* Add a node after the captured ones; `inside` is the graph of its body. */
static int32_t add_node(void *stream, uint64_t handle, enum condition kind, void **inside) {
  int status = 0;
  size_t n_waits = 0;
  void *graph = NULL, *node = NULL, *const *waits = NULL;
  const void *edges = NULL;
  node_params params = {.type = CONDITIONAL, .condition = {handle, kind, 1, NULL, tw_cuda_context}};
  TRY("cuStreamGetCaptureInfo",
      tw_cu.capture_info(stream, &status, NULL, &graph, &waits, &edges, &n_waits));
  TRY("cuGraphAddNode", tw_cu.node_add(&node, graph, waits, edges, n_waits, &params));
  TRY("cuStreamUpdateCaptureDependencies",
      tw_cu.capture_update(stream, &node, NULL, 1, REPLACE_WAITS));
  *inside = params.condition.graphs[0];
  return TW_OK;
}

/* Capture a body's launches in sequence into its graph; for a loop, also its continuation test. */
static int32_t record_body(const recording *of, const tw_cuda_body *body, void *inside,
                           const uint64_t *again, const address *values) {
  void *stream = NULL, *ended = NULL;
  TRY("cuStreamCreate", tw_cu.stream_create(&stream, 0));
  result begun = tw_cu.capture_to(stream, inside, NULL, NULL, 0, CAPTURE_THREAD_LOCAL);
  int32_t code = begun ? tw_cuda_refused("cuStreamBeginCaptureToGraph", begun) : TW_OK;
  for (int32_t i = 0; i < body->n_launches && code == TW_OK; ++i) {
    code = start(of, &of->variant->launches[body->first + i], stream, false);
  }
  if (code == TW_OK && again) {
    const address told[] = {values[0], values[4], values[5]}; /* control, at, going */
    code = decide(of, AGAIN, again, 1, told, 3, stream);
  }
  if (!begun) {
    result done = tw_cu.capture_end(stream, &ended);
    if (code == TW_OK && done) code = tw_cuda_refused("cuStreamEndCapture", done);
  }
  tw_cu.stream_destroy(stream);
  return code;
}

static int32_t record_decision(const recording *of, const tw_cuda_launch *launch, address *values,
                               void *stream) {
  const tw_cuda_body *bodies = of->variant->bodies + launch->first_body;
  bool is_loop = launch->kernel == TW_CUDA_LOOP;
  int32_t count = is_loop ? 1 : 2, code = TW_OK;
  uint64_t handles[2];
  for (int32_t i = 0; i < count && code == TW_OK; ++i) code = new_handle(stream, &handles[i]);
  if (code == TW_OK) {
    code =
        decide(of, is_loop ? BEGIN : CHOOSE, handles, count, values, launch->n_arguments, stream);
  }
  for (int32_t i = 0; i < count && code == TW_OK; ++i) {
    void *inside = NULL;
    code = add_node(stream, handles[i], is_loop ? RUNS_AGAIN : RUNS_ONCE, &inside);
    if (code != TW_OK) return code;
    code = record_body(of, &bodies[i], inside, is_loop ? handles : NULL, values);
  }
  return code;
}

/* ---- graphs ---- */

/* The branch of a launch: that of the last launch it waits for, else an empty one, else the one
 * idle for longest. `tails` has the last launch of each branch, or -1. */
static int32_t branch_of(const int32_t tails[BRANCHES], const int32_t *waits, int32_t n_waits) {
  int32_t best = -1, oldest = 0;
  for (int32_t i = 0; i < BRANCHES; ++i) {
    for (int32_t j = 0; j < n_waits; ++j) {
      if (tails[i] == waits[j] && (best < 0 || tails[i] > tails[best])) best = i;
    }
    if (tails[i] < tails[oldest]) oldest = i;
  }
  return best >= 0 ? best : oldest; /* an empty one has the least tail */
}

/* Whether a model's launches are kernels alone, in one graph whose nodes can be changed. */
static bool can_change(const recording *of) {
  for (int32_t i = 0; i < of->variant->n_launches; ++i) {
    if (of->variant->launches[i].kernel < 0) return false;
  }
  return tw_cuda_has_changes();
}

/* The node that a stream has captured last. */
static int32_t note_node(void *stream, void **node) {
  int status = 0;
  void *graph = NULL, *const *last = NULL;
  const void *edges = NULL;
  size_t count = 0;
  TRY("cuStreamGetCaptureInfo",
      tw_cu.capture_info(stream, &status, NULL, &graph, &last, &edges, &count));
  if (count != 1) return tw_errorf(TW_ERROR_INTERNAL, "a stream ends in %zu nodes", count);
  *node = last[0];
  return TW_OK;
}

/* Whether a launch uses a tensor that has moved. */
static bool uses_moved(const recording *of, const tw_cuda_launch *launch, const bool *moved) {
  const tw_cuda_argument *given = of->variant->arguments + launch->first;
  for (int32_t i = 0; i < launch->n_arguments; ++i) {
    bool is_map = given[i].kind == TW_CUDA_MAP;
    const tw_cuda_argument *at = is_map ? &of->variant->maps[given[i].value].base : &given[i];
    if (at->kind == TW_CUDA_INPUT && moved[at->which]) return true;
    if (at->kind == TW_CUDA_OUTPUT && moved[of->model->n_inputs + at->which]) return true;
  }
  return false;
}

/* Give the kernels of a captured graph the addresses of this call. */
static int32_t rebind(const recording *of, const bool *moved) {
  of->own->is_whole = false; /* should a part of it fail */
  int32_t code = encode_maps(of);
  for (int32_t i = 0; i < of->variant->n_launches && code == TW_OK; ++i) {
    const tw_cuda_launch *launch = &of->variant->launches[i];
    if (!uses_moved(of, launch, moved)) continue;
    const tw_cuda_kernel *kernel = &of->model->kernels[launch->kernel];
    address values[MAX_ARGUMENTS];
    void *pointers[MAX_ARGUMENTS];
    code = resolve(of, launch, values, pointers);
    if (code != TW_OK) return code;
    kernel_params params = {.function = of->on->kernels[launch->kernel],
                            .shared_bytes = (unsigned)kernel->shared_bytes,
                            .arguments = pointers};
    memcpy(params.grid, launch->grid, sizeof params.grid);
    memcpy(params.block, launch->block, sizeof params.block);
    TRY("cuGraphExecKernelNodeSetParams",
        tw_cu.node_change(of->own->graphs[of->variant->bodies->first], of->own->nodes[i], &params));
  }
  of->own->is_whole = code == TW_OK;
  return code;
}

/* Capture launches; all earlier ones have ended. `events` has one for each, and one for the start.
 * A launch that waits only for the last one of its own branch may start early. */
static int32_t record_all(const recording *of, const tw_cuda_body *some, void **events,
                          int32_t *at) {
  const tw_cuda_launch *launches = of->variant->launches;
  int32_t tails[BRANCHES], first = some->first, count = some->n_launches;
  void *stream = of->on->stream, *begun = events[count];
  for (int32_t i = 0; i < BRANCHES; ++i) tails[i] = -1;
  TRY("cuEventRecord", tw_cu.event_record(begun, stream));
  for (int32_t i = first; i < first + count; ++i) {
    const tw_cuda_launch *launch = &launches[i];
    const int32_t *waits = of->variant->waits + launch->first_wait;
    int32_t own = at[i - first] = branch_of(tails, waits, launch->n_waits);
    bool follows = tails[own] >= 0 && launches[tails[own]].kernel >= 0;
    stream = of->on->branches[own];
    if (own && tails[own] < 0) {
      TRY("cuStreamWaitEvent", tw_cu.stream_wait_event(stream, begun, 0));
    }
    for (int32_t j = 0; j < launch->n_waits; ++j) {
      int32_t other = waits[j] - first;
      if (other < 0 || at[other] == own) continue;
      follows = false;
      TRY("cuStreamWaitEvent", tw_cu.stream_wait_event(stream, events[other], 0));
    }
    int32_t code = start(of, launch, stream, follows && launch->starts_early);
    if (code == TW_OK && can_change(of)) code = note_node(stream, &of->own->nodes[i]);
    if (code != TW_OK) return code;
    TRY("cuEventRecord", tw_cu.event_record(events[i - first], stream));
    tails[own] = i;
  }
  for (int32_t i = 1; i < BRANCHES; ++i) {
    if (tails[i] < 0) continue;
    TRY("cuStreamWaitEvent", tw_cu.stream_wait_event(of->on->stream, events[tails[i] - first], 0));
  }
  return TW_OK;
}

/* Capture launches as one graph, for the bound addresses. */
static int32_t record_graph(const recording *of, const tw_cuda_body *some) {
  void *stream = of->on->stream, *graph = NULL;
  int32_t code = TW_OK, made = 0;
  size_t count = (size_t)some->n_launches + 1;
  void **events = calloc(count, sizeof *events);
  int32_t *at = calloc(count, sizeof *at);
  if (!events || !at) code = tw_error(TW_ERROR_NO_MEMORY, "no memory for a graph");
  for (; code == TW_OK && made < (int32_t)count; ++made) {
    result created = tw_cu.event_create(&events[made], NO_TIMING);
    if (created != 0) code = tw_cuda_refused("cuEventCreate", created);
  }
  if (code == TW_OK) {
    result begun = tw_cu.capture_begin(stream, CAPTURE_THREAD_LOCAL);
    if (begun != 0) code = tw_cuda_refused("cuStreamBeginCapture", begun);
  }
  if (code == TW_OK) {
    code = record_all(of, some, events, at);
    result ended = tw_cu.capture_end(stream, &graph);
    if (code == TW_OK && ended != 0) code = tw_cuda_refused("cuStreamEndCapture", ended);
  }
  if (code == TW_OK) {
    result built = tw_cu.graph_make(&of->own->graphs[some->first], graph, 0);
    if (built != 0) code = tw_cuda_refused("cuGraphInstantiate", built);
  }
  if (graph && code == TW_OK && can_change(of)) {
    of->own->source = graph;
  } else if (graph) {
    tw_cu.graph_free(graph);
  }
  for (int32_t i = 0; i < made; ++i) {
    if (events[i]) tw_cu.event_destroy(events[i]);
  }
  free(events);
  free(at);
  return code;
}

/* The number of launches of a body, from one on, in one graph; 0 where the host decides. */
static int32_t graph_size(const recording *of, const tw_cuda_body *body, int32_t from) {
  int32_t left = body->first + body->n_launches - from, count = 0;
  if (tw_cuda_has_conditions()) return left;
  while (count < left && !is_decision(&of->variant->launches[from + count])) ++count;
  return count;
}

/* Capture all graphs of a model. Bodies are part of the model's graph, or separate graphs. */
static int32_t record(const recording *of) {
  recorded *own = of->own;
  own->is_whole = false;
  for (int32_t i = 0; i < of->variant->n_launches; ++i) {
    if (own->graphs[i]) tw_cu.graph_exec_free(own->graphs[i]);
    own->graphs[i] = NULL;
  }
  if (own->source) tw_cu.graph_free(own->source);
  own->source = NULL;
  int32_t code = encode_maps(of), count = tw_cuda_has_conditions() ? 1 : of->variant->n_bodies;
  for (const tw_cuda_body *body = of->variant->bodies; count--; ++body) {
    int32_t end = body->first + body->n_launches;
    for (int32_t i = body->first; i < end && code == TW_OK;) {
      tw_cuda_body some = {i, graph_size(of, body, i)};
      if (some.n_launches) code = record_graph(of, &some);
      i += some.n_launches ? some.n_launches : 1;
    }
  }
  own->is_whole = code == TW_OK;
  return code;
}

/* ---- decisions on the host, between graphs ---- */

static int32_t look(const recording *of, address at, void *found, size_t size_bytes) {
  TRY("cuMemcpyDtoH", tw_cu.copy_out(found, at, size_bytes, of->stream));
  TRY("cuStreamSynchronize", tw_cu.stream_wait(of->stream));
  return TW_OK;
}

static int32_t run_body(const recording *of, const tw_cuda_body *body);

static int32_t run_loop(const recording *of, const tw_cuda_body *body, const address *values) {
  address control = values[0], trip = values[1], begins = values[3], at = values[4];
  int64_t limit = (int64_t)values[2], told = limit;
  uint8_t goes_on = 1;
  const uint8_t yes = 1;
  int32_t code = trip ? look(of, trip, &told, sizeof told) : TW_OK;
  if (code == TW_OK && begins) code = look(of, begins, &goes_on, sizeof goes_on);
  if (told < limit) limit = told;
  for (int64_t i = 0; code == TW_OK && goes_on && i < limit; ++i) {
    TRY("cuMemcpyHtoD", tw_cu.copy_in(at, &i, sizeof i, of->stream));
    TRY("cuMemcpyHtoD", tw_cu.copy_in(values[5], &yes, sizeof yes, of->stream));
    code = run_body(of, body);
    if (code == TW_OK) code = look(of, control + TW_CUDA_COND_AT, &goes_on, sizeof goes_on);
  }
  return code;
}

static int32_t run_decision(const recording *of, const tw_cuda_launch *launch) {
  const tw_cuda_body *bodies = of->variant->bodies + launch->first_body;
  address values[MAX_ARGUMENTS];
  void *pointers[MAX_ARGUMENTS];
  uint8_t holds = 0;
  int32_t code = resolve(of, launch, values, pointers);
  if (code != TW_OK) return code;
  if (launch->kernel == TW_CUDA_LOOP) return run_loop(of, bodies, values);
  code = look(of, values[0], &holds, sizeof holds);
  return code == TW_OK ? run_body(of, &bodies[holds ? 0 : 1]) : code;
}

static int32_t run_body(const recording *of, const tw_cuda_body *body) {
  int32_t code = TW_OK, end = body->first + body->n_launches;
  for (int32_t i = body->first; i < end && code == TW_OK;) {
    int32_t count = graph_size(of, body, i);
    if (count) {
      TRY("cuGraphLaunch", tw_cu.graph_launch(of->own->graphs[i], of->stream));
    } else {
      code = run_decision(of, &of->variant->launches[i]);
    }
    i += count ? count : 1;
  }
  return code;
}

/* ---- calls ---- */

static bool is_on_gpu(const void *data) {
  unsigned kind = 0;
  result code = tw_cu.pointer_attribute(&kind, POINTER_MEMORY_TYPE, (address)(uintptr_t)data);
  return code == 0 && kind == MEMORY_OF_DEVICE;
}

/* The bytes of a tensor, for the largest of the saved sizes. */
static int64_t most_bytes(const tw_cuda_model *model, int32_t at) {
  int64_t most = 0;
  for (int32_t i = 0; i < model->n_variants; ++i) {
    int64_t size = model->variants[i].tensor_bytes[at];
    if (size > most) most = size;
  }
  return most;
}

/* Check the caller's GPU memory: it must be on the model's GPU, and aligned for its kernels. */
static int32_t check_on_gpu(const recording *of, int32_t at, address data) {
  bool is_input = at < of->model->n_inputs;
  const char *what = is_input ? "input" : "output";
  int32_t number = is_input ? at : at - of->model->n_inputs;
  int ordinal = TW_CUDA_ORDINAL;
  TRY("cuPointerGetAttribute", tw_cu.pointer_attribute(&ordinal, POINTER_ORDINAL, data));
  if (ordinal != TW_CUDA_ORDINAL) {
    return tw_errorf(TW_ERROR_DEVICE, "%s %d is on cuda:%d, expected cuda:%d", what, number,
                     ordinal, TW_CUDA_ORDINAL);
  }
  if (data % ACCESS_BYTES == 0) return TW_OK;
  return tw_errorf(TW_ERROR_ALIGNMENT, "%s %d lies at an address that %d does not divide", what,
                   number, ACCESS_BYTES);
}

/* The address of a tensor in the graph: in place, or a staging buffer. */
static int32_t bind(const recording *of, int32_t at, const void *data, address *found) {
  if (is_on_gpu(data)) {
    *found = (address)(uintptr_t)data;
    return check_on_gpu(of, at, *found);
  }
  address *staged = &of->on->staged[at];
  int32_t code = *staged ? TW_OK : allocate(staged, most_bytes(of->model, at));
  *found = *staged;
  return code;
}

/* Run on the caller's stream, or the instance's: after an earlier call that may still run on
 * another stream, since there is one arena. With a caller's stream the call does not wait, unless
 * host memory is copied. */
static int32_t run_bound(const recording *of, const void *const *inputs, void *const *outputs) {
  int32_t n_inputs = of->model->n_inputs, n_outputs = of->model->n_outputs;
  instance *on = of->on;
  const address *bound = of->own->bound;
  const int64_t *bytes = of->variant->tensor_bytes;
  bool waits = !callers.is_given;
  if (on->is_behind) {
    TRY("cuStreamWaitEvent", tw_cu.stream_wait_event(of->stream, on->done, 0));
  }
  for (int32_t i = 0; i < n_inputs; ++i) {
    if (bound[i] != on->staged[i] || !bytes[i]) continue;
    TRY("cuMemcpyHtoD", tw_cu.copy_in(bound[i], inputs[i], (size_t)bytes[i], of->stream));
    waits = true;
  }
  int32_t code = run_body(of, of->variant->bodies);
  if (code != TW_OK) return code;
  for (int32_t at = n_inputs - of->model->n_states; at < n_inputs + n_outputs; ++at) {
    if (bound[at] != on->staged[at] || !bytes[at]) continue;
    void *target = at < n_inputs ? (void *)(uintptr_t)inputs[at] : outputs[at - n_inputs];
    TRY("cuMemcpyDtoH", tw_cu.copy_out(target, bound[at], (size_t)bytes[at], of->stream));
    waits = true;
  }
  if (waits) {
    TRY("cuStreamSynchronize", tw_cu.stream_wait(of->stream));
  } else {
    TRY("cuEventRecord", tw_cu.event_record(on->done, of->stream));
  }
  on->is_behind = !waits;
  return TW_OK;
}

/* A stream being captured cannot wait for earlier calls, nor copy tensors in host memory. */
static int32_t check_stream(void) {
  int status = 0;
  if (!callers.is_given) return TW_OK;
  TRY("cuStreamIsCapturing", tw_cu.stream_captures(callers.stream, &status));
  if (!status) return TW_OK;
  return tw_error(TW_ERROR_DEVICE, "the stream is being captured; call the model outside of it");
}

static int32_t run_locked(recording *of, const void *const *inputs, void *const *outputs) {
  int32_t n_inputs = of->model->n_inputs, n_outputs = of->model->n_outputs;
  instance *on = of->on;
  address *bound = of->own->bound;
  int32_t code = check_stream();
  if (code == TW_OK) code = prepare(of->model, on);
  of->stream = callers.is_given ? callers.stream : on->stream;
  bool is_new = !of->own->is_whole, moved[MAX_TENSORS];
  for (int32_t i = 0; i < n_inputs + n_outputs && code == TW_OK; ++i) {
    const void *data = i < n_inputs ? inputs[i] : outputs[i - n_inputs];
    address found = 0;
    code = bind(of, i, data, &found);
    moved[i] = bound[i] != found;
    is_new |= moved[i];
    bound[i] = found;
  }
  if (code == TW_OK && is_new) {
    code = of->own->is_whole && of->own->source ? rebind(of, moved) : record(of);
  }
  if (code != TW_OK) return code;
  code = run_bound(of, inputs, outputs);
  if (code != TW_OK) tw_cu.stream_wait(of->stream); /* the caller's memory is no longer in use */
  return code;
}

/* The saved variant for the sizes of a call's inputs, or -1. */
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

int32_t tw_cuda_run(tw_call *call, const tw_cuda_model *model, const DLTensor *const *inputs,
                    int32_t n_inputs) {
  const void *given[MAX_TENSORS];
  void *wanted[MAX_TENSORS];
  if (n_inputs != model->n_inputs || n_inputs + model->n_outputs > MAX_TENSORS) {
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
  int32_t code = tw_cuda_check();
  if (code == TW_OK) code = tw_cuda_open();
  if (code != TW_OK) return code;
  instance *on = instance_of(model);
  if (!on) return TW_ERROR_NO_MEMORY;
  void *before = NULL; /* the caller's context is restored */
  tw_cu.context_get(&before);
  result entered = tw_cu.context_set(tw_cuda_context);
  if (entered != 0) return tw_cuda_refused("cuCtxSetCurrent", entered);
  recording of = {model, variant, on, &on->variants[chosen], NULL};
  pthread_mutex_lock(&on->lock);
  code = run_locked(&of, given, wanted);
  pthread_mutex_unlock(&on->lock);
  tw_cu.context_set(before);
  return code;
}
