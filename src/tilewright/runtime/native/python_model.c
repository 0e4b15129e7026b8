/* `_native.Model`: a compiled model, called with its inputs; allocates the arrays of its
   outputs. */
#include "python_native.h"

typedef struct {
  PyObject_HEAD
  tw_main main;
  const tw_runtime *runtime; /* that the code is linked with */
  tw_model *model;
  PyObject *signature; /* of the inputs */
  PyObject *whole;     /* of the inputs and the outputs */
  PyObject *owner;     /* keeps code and weights in memory */
  PyTypeObject *array_type;
  DLDataType *dtypes; /* of the outputs */
  int32_t n_outputs;
} Model;

static PyTypeObject *model_type;

PyDoc_STRVAR(
    model_doc,
    "Model(address, signature, outputs, constants, array_type, owner, runtime, whole)\n--\n\n"
    "A compiled model. `outputs` holds (code, bits, lanes) for each, `constants` is the "
    "address of the table of weights, `runtime` that of a library's runtime, or 0, `whole` "
    "the signature with the outputs.");

const tw_runtime *runtime_at(unsigned long long address) {
  const tw_runtime *runtime = (const tw_runtime *)(uintptr_t)address;
  if (!runtime) return &tw_this_runtime;
  if (runtime->version == TW_RUNTIME_VERSION && runtime->size_bytes == sizeof *runtime) {
    return runtime;
  }
  raise_code(TW_ERROR_INTERNAL, "the library has a runtime of another version");
  return NULL;
}

static PyObject *model_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  (void)kwargs;
  unsigned long long address, constants, runtime_address;
  PyObject *signature, *whole, *outputs, *array_type, *owner;
  if (!PyArg_ParseTuple(args, "KO!O!KO!OKO!", &address, signature_type, &signature, &PyTuple_Type,
                        &outputs, &constants, &PyType_Type, &array_type, &owner, &runtime_address,
                        signature_type, &whole)) {
    return NULL;
  }
  const tw_runtime *runtime = runtime_at(runtime_address);
  if (!runtime) return NULL;
  Model *self = (Model *)new_object(type);
  if (!self) return NULL;
  self->main = (tw_main)(uintptr_t)address;
  self->runtime = runtime;
  self->n_outputs = (int32_t)PyTuple_Size(outputs);
  Py_INCREF(signature);
  self->signature = signature;
  Py_INCREF(whole);
  self->whole = whole;
  Py_INCREF(owner);
  self->owner = owner;
  Py_INCREF(array_type);
  self->array_type = (PyTypeObject *)array_type;
  self->dtypes = PyMem_Calloc((size_t)self->n_outputs + 1, sizeof *self->dtypes);
  bool good = self->dtypes != NULL;
  for (int32_t i = 0; good && i < self->n_outputs; ++i) {
    DLDataType *dtype = &self->dtypes[i];
    good = PyArg_ParseTuple(PyTuple_GetItem(outputs, i), "bbH", &dtype->code, &dtype->bits,
                            &dtype->lanes);
  }
  if (good) {
    self->model = runtime->model_new((const void *const *)(uintptr_t)constants);
    if (self->model) return (PyObject *)self;
    raise_code(TW_ERROR_NO_MEMORY, "cannot allocate a model");
  }
  Py_DECREF(self);
  return NULL;
}

static int model_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((Model *)object)->owner);
  return 0;
}

static void model_dealloc(PyObject *object) {
  Model *self = (Model *)object;
  PyObject_GC_UnTrack(object);
  if (self->model) self->runtime->model_free(self->model);
  PyMem_Free(self->dtypes);
  Py_XDECREF(self->signature);
  Py_XDECREF(self->whole);
  Py_XDECREF(self->owner);
  Py_XDECREF((PyObject *)self->array_type);
  free_object(object);
}

/* ---- outputs ---- */

typedef struct {
  void *memory;
  int32_t ndim;
  int64_t shape[MAX_NDIM];
} made;

typedef struct {
  const Model *model;
  made *outputs;
  bool failed; /* in this file, not in the model: the error is in this library's runtime */
} maker;

/* Called without the interpreter's lock. */
static void *make_output(tw_call *call, int32_t index, int32_t ndim, const int64_t *shape) {
  maker *m = call->caller;
  made *output = &m->outputs[index];
  m->failed = true;
  if (ndim > MAX_NDIM) {
    tw_errorf(TW_ERROR_RANK, "output %d has %d dimensions, at most %d are possible", index, ndim,
              MAX_NDIM);
    return NULL;
  }
  int64_t size_bytes = compact_bytes(ndim, shape, m->model->dtypes[index]);
  if (size_bytes < 0) return NULL;
  output->ndim = ndim;
  for (int32_t axis = 0; axis < ndim; ++axis) output->shape[axis] = shape[axis];
  if (output->memory) tw_workspace_free(output->memory);
  output->memory = tw_workspace_alloc(size_bytes);
  m->failed = !output->memory;
  return output->memory;
}

/* As arrays, or as tensors of the library that owns the exchange. */
static PyObject *to_arrays(const Model *self, made *outputs, const Exchange *exchange) {
  PyObject *tuple = PyTuple_New(self->n_outputs);
  for (int32_t i = 0; tuple && i < self->n_outputs; ++i) {
    made *output = &outputs[i];
    void *memory = output->memory;
    output->memory = NULL;
    PyObject *array = NULL;
    if (memory && exchange) {
      array = exchange_adopt(exchange, output->ndim, output->shape, self->dtypes[i], memory);
    } else if (memory) {
      array = tensor_adopt(self->array_type, output->ndim, output->shape, self->dtypes[i], memory);
    } else {
      raise_code(TW_ERROR_INTERNAL, "the model did not compute an output");
    }
    if (!array || PyTuple_SetItem(tuple, i, array) != 0) Py_CLEAR(tuple);
  }
  return tuple;
}

enum { FEW_OUTPUTS = 4 };

static PyObject *run(const Model *self, PyObject *args, int threads, const Exchange *exchange) {
  frame f;
  if (!open_frame(&f, signature_in(self->signature), args, exchange)) return NULL;
  made few[FEW_OUTPUTS], *outputs = few;
  if (self->n_outputs > FEW_OUTPUTS) {
    outputs = PyMem_Malloc((size_t)self->n_outputs * sizeof *outputs);
    if (!outputs) {
      close_frame(&f);
      return PyErr_NoMemory();
    }
  }
  for (int32_t i = 0; i < self->n_outputs; ++i) outputs[i].memory = NULL;

  const tw_runtime *runtime = self->runtime;
  maker m = {self, outputs, false};
  PyThreadState *state = PyEval_SaveThread();
  int32_t before = threads > 0 ? runtime->set_own_threads(threads) : 0;
  int32_t code = TW_ERROR_NO_MEMORY;
  tw_call *call = runtime->call_begin(self->model);
  if (call) {
    call->caller = &m;
    call->output = make_output;
    code = self->main(call, f.tensors, f.n_args);
    runtime->call_end(self->model, call);
  }
  if (threads > 0) runtime->set_own_threads(before);
  PyEval_RestoreThread(state);
  close_frame(&f);

  PyObject *result = NULL;
  if (code == TW_OK) {
    result = to_arrays(self, outputs, exchange);
  } else {
    raise_code(code, m.failed ? tw_last_error() : runtime->last_error());
  }
  for (int32_t i = 0; i < self->n_outputs; ++i) tw_workspace_free(outputs[i].memory);
  if (outputs != few) PyMem_Free(outputs);
  return result;
}

static PyObject *model_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  int threads;
  if (!read_threads(kwargs, &threads)) return NULL;
  return run((const Model *)object, args, threads, NULL);
}

PyDoc_STRVAR(exchanged_doc,
             "call_exchanged(exchange, inputs, threads=0)\n--\n\nThe outputs as tensors of the "
             "library whose exchange it is; so may the inputs be.");

static PyObject *model_call_exchanged(PyObject *object, PyObject *args) {
  PyObject *exchange, *inputs;
  int threads = 0;
  if (!PyArg_ParseTuple(args, "O!O!|i", exchange_type, &exchange, &PyTuple_Type, &inputs,
                        &threads)) {
    return NULL;
  }
  return run((const Model *)object, inputs, threads, (const Exchange *)exchange);
}

PyDoc_STRVAR(into_doc,
             "call_into(inputs, outputs, threads=0)\n--\n\nCompute into arrays of the caller's.");

static PyObject *model_call_into(PyObject *object, PyObject *args) {
  Model *self = (Model *)object;
  PyObject *inputs, *outputs;
  int threads = 0;
  if (!PyArg_ParseTuple(args, "O!O!|i", &PyTuple_Type, &inputs, &PyTuple_Type, &outputs,
                        &threads)) {
    return NULL;
  }
  const tw_signature *signature = signature_in(self->signature);
  int32_t n = signature->n_params, n_outputs = (int32_t)PyTuple_Size(outputs);
  if (n_outputs != self->n_outputs) {
    tw_errorf(TW_ERROR_ARGUMENTS, "%s: it has %d outputs, got %d", signature->name, self->n_outputs,
              n_outputs);
    return raise_last();
  }
  frame f;
  if (!open_frame(&f, signature, inputs, NULL)) return NULL;
  size_t count = (size_t)(n + n_outputs);
  loan *loans = PyMem_Calloc((size_t)n_outputs + 1, sizeof *loans);
  const DLTensor **tensors = PyMem_Calloc(count + 1, sizeof *tensors);
  bool good = loans && tensors;
  int32_t opened = 0;
  for (int32_t i = 0; good && i < n; ++i) tensors[i] = f.tensors[i];
  for (int32_t i = 0; good && i < n_outputs; ++i) {
    good = loan_open(&loans[i], PyTuple_GetItem(outputs, i), (blame){signature->name, "output"});
    if (!good) break;
    opened++;
    tensors[n + i] = &loans[i].tensor;
    if (loans[i].read_only) {
      tw_errorf(TW_ERROR_READ_ONLY, "%s: output %d is read-only", signature->name, i);
      raise_last();
      good = false;
    }
  }
  const tw_signature *whole = signature_in(self->whole);
  int64_t *symbols = PyMem_Calloc((size_t)whole->n_symbols + 1, sizeof *symbols);
  if (good && !symbols) {
    PyErr_NoMemory();
    good = false;
  }
  if (good && tw_check_args(whole, tensors, (int32_t)count, symbols) != TW_OK) {
    raise_last();
    good = false;
  }
  PyMem_Free(symbols);
  int32_t code = TW_OK;
  if (good) {
    PyThreadState *state = PyEval_SaveThread();
    int32_t before = threads > 0 ? self->runtime->set_own_threads(threads) : 0;
    code = self->runtime->model_call(self->model, self->main, signature->name, tensors,
                                     (int32_t)count, n, n_outputs);
    if (threads > 0) self->runtime->set_own_threads(before);
    PyEval_RestoreThread(state);
  }
  for (int32_t i = 0; i < opened; ++i) loan_close(&loans[i]);
  PyMem_Free(loans);
  PyMem_Free(tensors);
  close_frame(&f);
  if (!good) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
  if (code != TW_OK) return raise_code(code, self->runtime->last_error());
  Py_RETURN_NONE;
}

PyDoc_STRVAR(set_foreign_doc,
             "set_foreign(run, fetch, context=0)\n--\n\nThe addresses in a tw_foreign.");

static PyObject *model_set_foreign(PyObject *object, PyObject *args) {
  Model *self = (Model *)object;
  unsigned long long run, fetch, context = 0;
  if (!PyArg_ParseTuple(args, "KK|K", &run, &fetch, &context)) return NULL;
  tw_foreign foreign = {(tw_run_part)(uintptr_t)run, (tw_fetch_part)(uintptr_t)fetch,
                        (void *)(uintptr_t)context};
  self->runtime->model_set_foreign(self->model, &foreign);
  Py_RETURN_NONE;
}

static PyObject *get_arena_bytes(PyObject *object, void *unused) {
  (void)unused;
  const Model *self = (const Model *)object;
  return PyLong_FromLongLong(self->runtime->model_bytes(self->model));
}

/* ---- plans ---- */

PyObject *plan_arena(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *sizes, *spans;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &sizes, &PyTuple_Type, &spans)) return NULL;
  Py_ssize_t count = PyTuple_Size(sizes);
  if (PyTuple_Size(spans) != 2 * count || count > INT32_MAX / 2) {
    PyErr_SetString(PyExc_ValueError, "a plan needs two steps for each size");
    return NULL;
  }
  size_t n = (size_t)count + 1;
  int64_t *numbers = PyMem_Malloc(2 * n * sizeof *numbers);
  int32_t *steps = PyMem_Malloc(2 * n * sizeof *steps);
  PyObject *result = NULL;
  if (!numbers || !steps) {
    PyErr_NoMemory();
  } else {
    for (Py_ssize_t i = 0; i < count; ++i) {
      numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
    }
    for (Py_ssize_t i = 0; i < 2 * count; ++i) {
      steps[i] = (int32_t)PyLong_AsLong(PyTuple_GetItem(spans, i));
    }
    if (!PyErr_Occurred()) {
      int64_t total = tw_plan_arena((int32_t)count, numbers, steps, numbers + n);
      PyObject *offsets = total < 0 ? raise_last() : tuple_of(numbers + n, (int32_t)count);
      if (offsets) result = Py_BuildValue("NL", offsets, (long long)total);
    }
  }
  PyMem_Free(numbers);
  PyMem_Free(steps);
  return result;
}

/* ---- the type ---- */

static PyMethodDef model_methods[] = {
    {"call_into", model_call_into, METH_VARARGS, into_doc},
    {"call_exchanged", model_call_exchanged, METH_VARARGS, exchanged_doc},
    {"set_foreign", model_set_foreign, METH_VARARGS, set_foreign_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef model_attributes[] = {
    {"arena_bytes", get_arena_bytes, NULL, "The memory that calls which have ended keep.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot model_slots[] = {
    {Py_tp_doc, (void *)model_doc},   {Py_tp_new, model_new},
    {Py_tp_dealloc, model_dealloc},   {Py_tp_traverse, model_traverse},
    {Py_tp_call, model_call},         {Py_tp_methods, model_methods},
    {Py_tp_getset, model_attributes}, {0, NULL},
};

static PyType_Spec model_spec = {
    .name = "tilewright.runtime._native.Model",
    .basicsize = sizeof(Model),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = model_slots,
};

bool model_init(PyObject *module) {
  model_type = (PyTypeObject *)PyType_FromSpec(&model_spec);
  return model_type && PyModule_AddObjectRef(module, "Model", (PyObject *)model_type) == 0;
}
