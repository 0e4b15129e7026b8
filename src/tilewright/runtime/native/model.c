/* Memory of a model's calls: arenas that outlive them, and where in an arena each value goes.
 *
 * A call in flight owns a `tw_call`. When it ends the call waits in a list of its model, arena and
 * plan included, so that a warm call allocates nothing and any number may be in flight at once.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

struct tw_model {
  const void *const *constants;
  atomic_flag locked; /* held for a few instructions */
  tw_call *idle;
};

static void lock(tw_model *model) {
  while (atomic_flag_test_and_set_explicit(&model->locked, memory_order_acquire)) {
  }
}

static void unlock(tw_model *model) {
  atomic_flag_clear_explicit(&model->locked, memory_order_release);
}

tw_model *tw_model_new(const void *const *constants) {
  tw_model *model = calloc(1, sizeof *model);
  if (!model) {
    tw_error(TW_ERROR_NO_MEMORY, "cannot allocate a model");
    return NULL;
  }
  model->constants = constants;
  atomic_flag_clear(&model->locked);
  return model;
}

static void free_call(tw_call *call) {
  tw_free(call->arena);
  free(call->plan);
  free(call->late);
  free(call);
}

void tw_model_free(tw_model *model) {
  if (!model) return;
  while (model->idle) {
    tw_call *next = model->idle->next;
    free_call(model->idle);
    model->idle = next;
  }
  free(model);
}

/* ---- calls ---- */

tw_call *tw_call_begin(tw_model *model) {
  lock(model);
  tw_call *call = model->idle;
  if (call) model->idle = call->next;
  unlock(model);
  if (!call) call = calloc(1, sizeof *call);
  if (!call) {
    tw_error(TW_ERROR_NO_MEMORY, "cannot allocate a call");
    return NULL;
  }
  call->constants = model->constants;
  call->next = NULL;
  return call;
}

void tw_call_end(tw_model *model, tw_call *call) {
  for (int32_t i = 0; i < call->n_late; ++i) tw_workspace_free(call->late[i]);
  call->n_late = 0;
  lock(model);
  call->next = model->idle;
  model->idle = call;
  unlock(model);
}

int64_t tw_model_bytes(tw_model *model) {
  int64_t total = 0;
  lock(model);
  for (tw_call *call = model->idle; call; call = call->next) total += call->arena_bytes;
  unlock(model);
  return total;
}

char *tw_call_arena(tw_call *call, int64_t size_bytes) {
  if (call->arena && call->arena_bytes >= size_bytes) return call->arena;
  tw_free(call->arena);
  call->arena = tw_alloc(size_bytes);
  call->arena_bytes = call->arena ? size_bytes : 0;
  return call->arena;
}

/* ---- memory of sizes that only the run reveals ---- */

void *tw_call_late(tw_call *call, int64_t size_bytes) {
  if (call->n_late == call->late_capacity) {
    int32_t capacity = call->late_capacity ? 2 * call->late_capacity : 16;
    void **grown = realloc(call->late, (size_t)capacity * sizeof *grown);
    if (!grown) {
      tw_error(TW_ERROR_NO_MEMORY, "cannot keep track of a call's memory");
      return NULL;
    }
    call->late = grown;
    call->late_capacity = capacity;
  }
  void *memory = tw_workspace_alloc(size_bytes);
  if (memory) call->late[call->n_late++] = memory;
  return memory;
}

void tw_call_drop(tw_call *call, void *memory) {
  for (int32_t i = call->n_late - 1; i >= 0; --i) {
    if (call->late[i] != memory) continue;
    call->late[i] = call->late[--call->n_late];
    tw_workspace_free(memory);
    return;
  }
}

void *tw_call_grow(tw_call *call, void *memory, int64_t used_bytes, int64_t size_bytes) {
  void *grown = tw_call_late(call, size_bytes);
  if (!grown) return NULL;
  if (memory && used_bytes > 0) memcpy(grown, memory, (size_t)used_bytes);
  if (memory) tw_call_drop(call, memory);
  return grown;
}

/* ---- plans ---- */

typedef struct {
  int64_t size, key;
  int32_t item;
} place;

static int by_key(const void *a, const void *b) {
  const place *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? 1 : -1;
  return x->item < y->item ? -1 : 1;
}

static int64_t aligned(int64_t size) { return (size + TW_ALIGN - 1) / TW_ALIGN * TW_ALIGN; }

static int overlap(const int32_t *spans, int32_t a, int32_t b) {
  return spans[2 * a] <= spans[2 * b + 1] && spans[2 * b] <= spans[2 * a + 1];
}

/* Each in turn goes to the smallest gap that holds it among those placed before. `sorted` keeps
 * the placed ones by offset. Returns the bytes in use. */
static int64_t place_all(int32_t count, const place *order, const int32_t *spans, int64_t *offsets,
                         int32_t *sorted, const int64_t *sizes) {
  int64_t total = 0;
  int32_t placed = 0;
  for (int32_t k = 0; k < count; ++k) {
    int32_t item = order[k].item;
    int64_t size = order[k].size, end = 0, best = -1, best_gap = INT64_MAX;
    for (int32_t j = 0; j < placed; ++j) {
      int32_t other = sorted[j];
      if (!overlap(spans, item, other)) continue;
      int64_t gap = offsets[other] - end;
      if (gap >= size && gap < best_gap) {
        best = end;
        best_gap = gap;
      }
      int64_t stop = offsets[other] + aligned(sizes[other]);
      if (stop > end) end = stop;
    }
    offsets[item] = best >= 0 ? best : end;
    if (offsets[item] + size > total) total = offsets[item] + size;
    int32_t at = placed++;
    while (at > 0 && offsets[sorted[at - 1]] > offsets[item]) {
      sorted[at] = sorted[at - 1];
      at--;
    }
    sorted[at] = item;
  }
  return total;
}

int64_t tw_plan_arena(int32_t count, const int64_t *sizes, const int32_t *spans, int64_t *offsets) {
  size_t n = (size_t)(count > 0 ? count : 1);
  place *order = malloc(n * sizeof *order);
  int32_t *sorted = malloc(n * sizeof *sorted);
  int64_t *trial = malloc(n * sizeof *trial), best = -1;
  if (order && sorted && trial) {
    /* The largest first; or what is in the way for longest; or both: none is always best. */
    for (int rule = 0; rule < 3; ++rule) {
      for (int32_t i = 0; i < count; ++i) {
        int64_t size = aligned(sizes[i]), span = spans[2 * i + 1] - spans[2 * i] + 1;
        int64_t key = rule == 0 ? size : rule == 1 ? span : size / TW_ALIGN * span;
        order[i] = (place){size, key, i};
      }
      qsort(order, (size_t)count, sizeof *order, by_key);
      int64_t total = place_all(count, order, spans, trial, sorted, sizes);
      if (best >= 0 && total >= best) continue;
      best = total;
      memcpy(offsets, trial, (size_t)count * sizeof *offsets);
    }
  } else {
    tw_error(TW_ERROR_NO_MEMORY, "cannot plan memory");
  }
  free(order);
  free(sorted);
  free(trial);
  return best;
}

const int64_t *tw_call_plan(tw_call *call, int32_t count, const int64_t *sizes,
                            const int32_t *spans) {
  size_t bytes = (size_t)count * sizeof *sizes;
  if (call->plan && call->plan_count == count && memcmp(call->plan, sizes, bytes) == 0) {
    return call->plan + count;
  }
  for (int32_t i = 0; i < count; ++i) {
    if (sizes[i] >= 0 && sizes[i] < INT64_MAX / 4) continue;
    tw_errorf(TW_ERROR_NO_MEMORY, "a value of the model needs %" PRId64 " bytes", sizes[i]);
    return NULL;
  }
  int64_t *plan = realloc(call->plan, 2 * bytes + 1);
  if (!plan) {
    tw_error(TW_ERROR_NO_MEMORY, "cannot plan memory");
    return NULL;
  }
  call->plan = plan;
  call->plan_count = -1;
  int64_t total = tw_plan_arena(count, sizes, spans, plan + count);
  if (total < 0 || !tw_call_arena(call, total)) return NULL;
  memcpy(plan, sizes, bytes);
  call->plan_count = count;
  return plan + count;
}

/* ---- calls by C programs: outputs are the caller's ---- */

typedef struct {
  const DLTensor *const *tensors;
  const char *name;
  int32_t count;
} supplied;

static void *take_supplied(tw_call *call, int32_t index, int32_t ndim, const int64_t *shape) {
  const supplied *outputs = call->caller;
  const DLTensor *tensor = index < outputs->count ? outputs->tensors[index] : NULL;
  if (!tensor || tensor->ndim != ndim) {
    tw_errorf(TW_ERROR_RANK, "%s: output %d needs %d dimensions", outputs->name, index, ndim);
    return NULL;
  }
  int64_t compact = 1;
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    if (tensor->shape[axis] != shape[axis]) {
      tw_errorf(TW_ERROR_SHAPE, "%s: output %d: dimension %d is %" PRId64 ", expected %" PRId64,
                outputs->name, index, axis, tensor->shape[axis], shape[axis]);
      return NULL;
    }
    if (tensor->strides && shape[axis] != 1 && tensor->strides[axis] != compact) {
      tw_errorf(TW_ERROR_STRIDES, "%s: output %d is not compact", outputs->name, index);
      return NULL;
    }
    compact *= shape[axis];
  }
  static char nothing[TW_ALIGN]; /* an empty tensor needs no memory, but an address */
  if (tensor->data) return (char *)tensor->data + tensor->byte_offset;
  if (compact == 0) return nothing;
  tw_errorf(TW_ERROR_NO_ARRAY, "%s: output %d has no data", outputs->name, index);
  return NULL;
}

int32_t tw_model_call(tw_model *model, tw_main main, const char *name, const DLTensor *const *args,
                      int32_t n_args, int32_t n_inputs, int32_t n_outputs) {
  if (n_args != n_inputs + n_outputs) {
    return tw_errorf(TW_ERROR_ARGUMENTS, "%s: it takes %d inputs and %d outputs, got %d arguments",
                     name, n_inputs, n_outputs, n_args);
  }
  tw_call *call = tw_call_begin(model);
  if (!call) return TW_ERROR_NO_MEMORY;
  supplied outputs = {args + n_inputs, name, n_outputs};
  call->caller = &outputs;
  call->output = take_supplied;
  int32_t code = main(call, args, n_inputs);
  tw_call_end(model, call);
  return code;
}
