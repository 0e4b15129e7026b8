/* Memory of a model's calls: arenas that outlive calls, and offsets of values in them.
 *
 * A call in flight owns a `tw_call`. When it ends, the call is kept in a list of its model,
 * including arena and plan, so that a warm call allocates nothing and any number may be in flight
 * at once.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

struct tw_model {
  const void *const *constants;
  atomic_flag locked; /* held for a few instructions */
  tw_call *idle;
  tw_foreign foreign;
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

void tw_model_set_foreign(tw_model *model, const tw_foreign *foreign) {
  static const tw_foreign nobody;
  lock(model);
  model->foreign = foreign ? *foreign : nobody;
  unlock(model);
}

/* ---- calls ---- */

tw_call *tw_call_begin(tw_model *model) {
  lock(model);
  tw_call *call = model->idle;
  if (call) model->idle = call->next;
  tw_foreign foreign = model->foreign;
  unlock(model);
  if (!call) call = calloc(1, sizeof *call);
  if (!call) {
    tw_error(TW_ERROR_NO_MEMORY, "cannot allocate a call");
    return NULL;
  }
  call->constants = model->constants;
  call->foreign = foreign;
  call->next = NULL;
  call->float_mode = tw_flush_subnormals();
  return call;
}

void tw_call_end(tw_model *model, tw_call *call) {
  tw_set_float_mode(call->float_mode);
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

/* ---- memory of data-dependent sizes ---- */

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
  int64_t key;
  int32_t item;
} place;

typedef struct {
  int64_t begin, end;
} gap;

typedef struct {
  const int64_t *sizes;
  const int32_t *spans;
  int64_t *offsets, total; /* of those placed */
  int32_t *sorted, placed; /* by offset */
  gap *gaps;               /* for the item being placed; the last one is unbounded */
  int32_t n_gaps;
} layout;

/* Bytes; more than processors address. Offsets and keys of smaller plans cannot overflow. */
#define MAX_ARENA (INT64_C(1) << 48)

static int by_key(const void *a, const void *b) {
  const place *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? 1 : -1;
  return x->item < y->item ? -1 : 1;
}

static int64_t aligned(int64_t size) { return (size + TW_ALIGN - 1) / TW_ALIGN * TW_ALIGN; }

/* Whether both are live at the same time, and nonempty. */
static bool do_meet(const layout *l, int32_t a, int32_t b) {
  if (l->sizes[a] == 0 || l->sizes[b] == 0) return false;
  return l->spans[2 * a] <= l->spans[2 * b + 1] && l->spans[2 * b] <= l->spans[2 * a + 1];
}

/* Find the gaps that are free during the item's lifetime. */
static void find_gaps(layout *l, int32_t item) {
  int64_t end = 0;
  l->n_gaps = 0;
  for (int32_t j = 0; j < l->placed; ++j) {
    int32_t other = l->sorted[j];
    if (!do_meet(l, item, other)) continue;
    if (l->offsets[other] > end) l->gaps[l->n_gaps++] = (gap){end, l->offsets[other]};
    int64_t stop = l->offsets[other] + aligned(l->sizes[other]);
    if (stop > end) end = stop;
  }
  l->gaps[l->n_gaps++] = (gap){end, INT64_MAX};
}

/* The start of the smallest sufficient gap; the last one always suffices. */
static int64_t smallest_gap(const layout *l, int64_t size) {
  gap best = l->gaps[l->n_gaps - 1];
  for (int32_t j = 0; j < l->n_gaps; ++j) {
    int64_t room = l->gaps[j].end - l->gaps[j].begin;
    if (room >= size && room < best.end - best.begin) best = l->gaps[j];
  }
  return best.begin;
}

static bool is_free(const layout *l, int64_t offset, int64_t size) {
  for (int32_t j = 0; j < l->n_gaps; ++j) {
    if (offset >= l->gaps[j].begin && l->gaps[j].end - offset >= size) return true;
  }
  return false;
}

/* The offset centred on another item, among those that leave room the one with the closest
 * lifetime; -1 if there is none. */
static int64_t around_middle(const layout *l, int32_t item, int64_t size) {
  int64_t best = -1, nearest = INT64_MAX;
  for (int32_t j = 0; j < l->placed; ++j) {
    int32_t other = l->sorted[j];
    if (do_meet(l, item, other) || l->sizes[other] == 0) continue;
    int64_t before = (int64_t)l->spans[2 * item] - l->spans[2 * other + 1];
    int64_t after = (int64_t)l->spans[2 * other] - l->spans[2 * item + 1];
    int64_t distance = before > 0 ? before : after;
    int64_t spare = aligned(l->sizes[other]) - size;
    int64_t offset = l->offsets[other] + spare / 2 / TW_ALIGN * TW_ALIGN;
    if (distance >= nearest || offset < 0 || offset + size > l->total) continue;
    if (!is_free(l, offset, size)) continue;
    best = offset;
    nearest = distance;
  }
  return best;
}

/* The maximum of live bytes, a lower bound of every layout. */
static int64_t most_alive(const layout *l, int32_t count) {
  int64_t most = 0;
  for (int32_t i = 0; i < count; ++i) {
    int64_t alive = 0, step = l->spans[2 * i];
    for (int32_t j = 0; j < count; ++j) {
      bool is_there = l->spans[2 * j] <= step && step <= l->spans[2 * j + 1];
      alive += is_there ? aligned(l->sizes[j]) : 0;
    }
    if (alive > most) most = alive;
  }
  return most;
}

static void place_item(layout *l, int32_t item, bool centred) {
  int64_t size = aligned(l->sizes[item]);
  find_gaps(l, item);
  int64_t offset = centred ? around_middle(l, item, size) : -1;
  if (offset < 0) offset = smallest_gap(l, size);
  l->offsets[item] = offset;
  if (offset + size > l->total) l->total = offset + size;
  int32_t at = l->placed++;
  for (; at > 0 && l->offsets[l->sorted[at - 1]] > offset; --at) l->sorted[at] = l->sorted[at - 1];
  l->sorted[at] = item;
}

int64_t tw_plan_arena(int32_t count, const int64_t *sizes, const int32_t *spans, int64_t *offsets) {
  size_t n = (size_t)(count > 0 ? count : 1);
  place *order = malloc(n * sizeof *order);
  layout l = {.sizes = sizes,
              .spans = spans,
              .offsets = malloc(n * sizeof *l.offsets),
              .sorted = malloc(n * sizeof *l.sorted),
              .gaps = malloc((n + 1) * sizeof *l.gaps)};
  int64_t best = -1;
  if (order && l.offsets && l.sorted && l.gaps) {
    /* Try orders: by size, by length of the lifetime, by their product; none is always best. Where
     * it costs nothing, values are centred on each other: two threads split them in halves, so each
     * finds what it overwrites in its own core's cache. */
    int64_t least = most_alive(&l, count);
    for (int rule = 0; rule < 6 && best != least; ++rule) {
      bool centred = rule < 3;
      for (int32_t i = 0; i < count; ++i) {
        int64_t size = aligned(sizes[i]), span = spans[2 * i + 1] - spans[2 * i] + 1;
        int64_t key = rule % 3 == 0 ? size : rule % 3 == 1 ? span : size / TW_ALIGN * span;
        order[i] = (place){key, i};
      }
      qsort(order, (size_t)count, sizeof *order, by_key);
      l.total = l.placed = 0;
      for (int32_t i = 0; i < count; ++i) place_item(&l, order[i].item, centred);
      if (best >= 0 && l.total >= best) continue;
      best = l.total;
      memcpy(offsets, l.offsets, (size_t)count * sizeof *offsets);
    }
  } else {
    tw_error(TW_ERROR_NO_MEMORY, "cannot plan memory");
  }
  free(order);
  free(l.offsets);
  free(l.sorted);
  free(l.gaps);
  return best;
}

const int64_t *tw_call_plan(tw_call *call, int32_t count, const int64_t *sizes,
                            const int32_t *spans) {
  size_t bytes = (size_t)count * sizeof *sizes;
  if (call->plan && call->plan_count == count && memcmp(call->plan, sizes, bytes) == 0) {
    return call->plan + count;
  }
  int64_t total = 0; /* no arena is larger */
  for (int32_t i = 0; i < count; ++i) {
    bool is_size = sizes[i] >= 0 && sizes[i] <= MAX_ARENA;
    if (is_size) total += aligned(sizes[i]);
    if (is_size && total <= MAX_ARENA) continue;
    tw_errorf(TW_ERROR_NO_MEMORY,
              "value %d of the model needs %" PRId64 " bytes, all before %" PRId64, i, sizes[i],
              is_size ? total - aligned(sizes[i]) : total);
    return NULL;
  }
  int64_t *plan = realloc(call->plan, 2 * bytes + 1);
  if (!plan) {
    tw_error(TW_ERROR_NO_MEMORY, "cannot plan memory");
    return NULL;
  }
  call->plan = plan;
  call->plan_count = -1;
  total = tw_plan_arena(count, sizes, spans, plan + count);
  if (total < 0 || !tw_call_arena(call, total)) return NULL;
  memcpy(plan, sizes, bytes);
  call->plan_count = count;
  return plan + count;
}

/* ---- calls by C programs, with outputs of the caller ---- */

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
  bool empty = false; /* strides are irrelevant */
  for (int32_t axis = 0; axis < ndim; ++axis) empty = empty || shape[axis] == 0;
  int64_t compact = 1;
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    if (tensor->shape[axis] != shape[axis]) {
      tw_errorf(TW_ERROR_SHAPE, "%s: output %d: dimension %d is %" PRId64 ", expected %" PRId64,
                outputs->name, index, axis, tensor->shape[axis], shape[axis]);
      return NULL;
    }
    if (tensor->strides && !empty && shape[axis] != 1 && tensor->strides[axis] != compact) {
      tw_errorf(TW_ERROR_STRIDES, "%s: output %d is not compact", outputs->name, index);
      return NULL;
    }
    compact *= shape[axis];
  }
  static char nothing[TW_ALIGN]; /* an empty tensor needs an address, but no memory */
  if (tensor->data) return (char *)tensor->data + tensor->byte_offset;
  if (empty) return nothing;
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
