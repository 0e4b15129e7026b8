/* Calls from Python into compiled code: signatures, arguments, functions. */
#include <string.h>

#include "python_native.h"

/* ---- signatures ---- */

typedef struct {
  PyObject_HEAD
  tw_signature signature;
  char *text; /* all names, concatenated */
  tw_param *params;
  int64_t *extents;
  const char **symbols;
} Signature;

PyTypeObject *signature_type;
static PyTypeObject *function_type;

static void signature_dealloc(PyObject *object) {
  Signature *self = (Signature *)object;
  PyMem_Free(self->text);
  PyMem_Free(self->params);
  PyMem_Free(self->extents);
  PyMem_Free(self->symbols);
  free_object(object);
}

/* Append a name to `text`, which has room for it. */
static const char *keep_name(char **text, const char *name) {
  char *kept = *text;
  size_t size = strlen(name) + 1;
  memcpy(kept, name, size);
  *text += size;
  return kept;
}

/* One parameter: (name, code, bits, lanes, extents, device_type, flags, align). */
static bool read_param(tw_param *param, PyObject *tuple, int32_t n_symbols, char **text,
                       int64_t **extents) {
  const char *name;
  PyObject *shape;
  if (!PyArg_ParseTuple(tuple, "sbbHO!iii", &name, &param->dtype.code, &param->dtype.bits,
                        &param->dtype.lanes, &PyTuple_Type, &shape, &param->device_type,
                        &param->flags, &param->align)) {
    return false;
  }
  param->name = keep_name(text, name);
  param->shape = *extents;
  param->ndim = (int32_t)PyTuple_Size(shape);
  for (int32_t axis = 0; axis < param->ndim; ++axis) {
    int64_t extent = PyLong_AsLongLong(PyTuple_GetItem(shape, axis));
    if (PyErr_Occurred()) return false;
    if (extent <= TW_DIM_SYMBOL(n_symbols)) {
      PyErr_Format(PyExc_ValueError, "parameter %s names symbol %lld of %d", name,
                   (long long)(-2 - extent), n_symbols);
      return false;
    }
    *(*extents)++ = extent;
  }
  return true;
}

/* Measure first, to allocate names and extents at once. */
static bool measure(PyObject *params, PyObject *symbols, size_t *text_size, size_t *n_extents) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(symbols); ++i) {
    Py_ssize_t size = 0;
    if (!PyUnicode_AsUTF8AndSize(PyTuple_GetItem(symbols, i), &size)) return false;
    *text_size += (size_t)size + 1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(params); ++i) {
    PyObject *param = PyTuple_GetItem(params, i);
    if (!PyTuple_Check(param) || PyTuple_Size(param) != 8 ||
        !PyTuple_Check(PyTuple_GetItem(param, 4))) {
      PyErr_SetString(PyExc_TypeError, "a parameter is a tuple of 8 with a tuple of extents");
      return false;
    }
    Py_ssize_t size = 0;
    if (!PyUnicode_AsUTF8AndSize(PyTuple_GetItem(param, 0), &size)) return false;
    *text_size += (size_t)size + 1;
    *n_extents += (size_t)PyTuple_Size(PyTuple_GetItem(param, 4));
  }
  return true;
}

PyDoc_STRVAR(
    signature_doc,
    "Signature(name, params, symbols)\n--\n\nWhat a compiled function expects. A parameter "
    "is (name, code, bits, lanes, extents, device_type, flags, align).");

static PyObject *signature_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  const char *name;
  PyObject *params, *symbols;
  if (kwargs && PyDict_Size(kwargs) > 0) {
    PyErr_SetString(PyExc_TypeError, "Signature takes positional arguments");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "sO!O!", &name, &PyTuple_Type, &params, &PyTuple_Type, &symbols)) {
    return NULL;
  }
  size_t text_size = strlen(name) + 1, n_extents = 0;
  if (!measure(params, symbols, &text_size, &n_extents)) return NULL;
  int32_t n_params = (int32_t)PyTuple_Size(params), n_symbols = (int32_t)PyTuple_Size(symbols);

  Signature *self = (Signature *)new_object(type);
  if (!self) return NULL;
  self->text = PyMem_Malloc(text_size);
  self->params = PyMem_Calloc((size_t)n_params + 1, sizeof *self->params);
  self->extents = PyMem_Calloc(n_extents + 1, sizeof *self->extents);
  self->symbols = PyMem_Calloc((size_t)n_symbols + 1, sizeof *self->symbols);
  if (!self->text || !self->params || !self->extents || !self->symbols) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  char *text = self->text;
  int64_t *extents = self->extents;
  self->signature =
      (tw_signature){keep_name(&text, name), self->params, self->symbols, n_params, n_symbols};
  for (int32_t i = 0; i < n_symbols; ++i) {
    self->symbols[i] = keep_name(&text, PyUnicode_AsUTF8AndSize(PyTuple_GetItem(symbols, i), NULL));
  }
  for (int32_t i = 0; i < n_params; ++i) {
    if (!read_param(&self->params[i], PyTuple_GetItem(params, i), n_symbols, &text, &extents)) {
      Py_DECREF(self);
      return NULL;
    }
  }
  return (PyObject *)self;
}

/* ---- arguments ---- */

static bool find_room(frame *f) {
  size_t n_args = (size_t)f->n_args, n_symbols = (size_t)f->signature->n_symbols;
  if (n_args <= FEW && n_symbols <= FEW_SYMBOLS) {
    f->tensors = f->few_tensors;
    f->symbols = f->few_symbols;
    f->loans = f->few_loans;
    f->loaned = f->few_loaned;
    return true;
  }
  f->many = PyMem_Malloc(n_args * (sizeof *f->loans + sizeof *f->tensors + sizeof *f->loaned) +
                         n_symbols * sizeof *f->symbols);
  if (!f->many) {
    PyErr_NoMemory();
    return false;
  }
  f->loans = f->many;
  f->tensors = (const DLTensor **)(f->loans + n_args);
  f->symbols = (int64_t *)(f->tensors + n_args);
  f->loaned = (bool *)(f->symbols + n_symbols);
  return true;
}

/* Borrow argument `i`; a Tensor needs no loan. */
static bool open_argument(frame *f, PyObject *object, int32_t i, const Exchange *exchange) {
  blame who = {f->signature->name, f->signature->params[i].name};
  bool read_only;
  f->loaned[i] = !PyObject_TypeCheck(object, tensor_type);
  if (!f->loaned[i]) {
    f->tensors[i] = &((Tensor *)object)->tensor;
    read_only = ((Tensor *)object)->read_only;
  } else {
    bool is_exchanged = exchange && exchange_has(exchange, object);
    if (!(is_exchanged ? exchange_lend(exchange, object, &f->loans[i])
                       : loan_open(&f->loans[i], object, who))) {
      return false;
    }
    f->tensors[i] = &f->loans[i].tensor;
    read_only = f->loans[i].read_only;
  }
  f->opened++;
  if (!read_only || !(f->signature->params[i].flags & TW_PARAM_WRITABLE)) return true;
  tw_errorf(TW_ERROR_READ_ONLY, "%s: argument %s: it is an output, yet read-only", who.function,
            who.argument);
  raise_last();
  return false;
}

void close_frame(frame *f) {
  for (int32_t i = 0; i < f->opened; ++i) {
    if (f->loaned[i]) loan_close(&f->loans[i]);
  }
  PyMem_Free(f->many);
}

bool open_frame(frame *f, const tw_signature *signature, PyObject *args, const Exchange *exchange) {
  f->signature = signature;
  f->n_args = (int32_t)PyTuple_Size(args);
  f->opened = 0;
  f->many = NULL;
  if (f->n_args != signature->n_params) {
    tw_errorf(TW_ERROR_ARGUMENTS, "%s: it takes %d arguments, got %d", signature->name,
              signature->n_params, f->n_args);
    raise_last();
    return false;
  }
  bool good = find_room(f);
  for (int32_t i = 0; good && i < f->n_args; ++i) {
    good = open_argument(f, PyTuple_GetItem(args, i), i, exchange);
  }
  if (good && tw_check_args(signature, f->tensors, f->n_args, f->symbols) != TW_OK) {
    raise_last();
    good = false;
  }
  if (!good) close_frame(f);
  return good;
}

/* ---- running ---- */

static PyObject *run(tw_kernel kernel, const tw_signature *signature, PyObject *args, int threads) {
  frame f;
  if (!open_frame(&f, signature, args, NULL)) return NULL;
  PyThreadState *state = PyEval_SaveThread();
  int32_t before = threads > 0 ? tw_set_own_threads(threads) : 0;
  int32_t code = kernel(f.tensors, f.n_args);
  if (threads > 0) tw_set_own_threads(before);
  PyEval_RestoreThread(state);
  close_frame(&f);
  if (code != TW_OK) return raise_code(code, tw_last_error());
  Py_RETURN_NONE;
}

const tw_signature *signature_in(PyObject *signature) {
  return &((const Signature *)signature)->signature;
}

PyObject *check_arrays(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *signature, *arrays;
  if (!PyArg_ParseTuple(args, "O!O!", signature_type, &signature, &PyTuple_Type, &arrays)) {
    return NULL;
  }
  frame f;
  if (!open_frame(&f, signature_in(signature), arrays, NULL)) return NULL;
  PyObject *values = tuple_of(f.symbols, f.signature->n_symbols);
  close_frame(&f);
  return values;
}

PyObject *call_kernel(PyObject *module, PyObject *args) {
  (void)module;
  unsigned long long address;
  PyObject *signature, *arrays;
  int threads = 0;
  if (!PyArg_ParseTuple(args, "KO!O!|i", &address, signature_type, &signature, &PyTuple_Type,
                        &arrays, &threads)) {
    return NULL;
  }
  return run((tw_kernel)(uintptr_t)address, signature_in(signature), arrays, threads);
}

/* ---- functions ---- */

typedef struct {
  PyObject_HEAD
  tw_kernel kernel;
  PyObject *signature;
  PyObject *owner; /* keeps the code in memory */
} Function;

PyDoc_STRVAR(function_doc,
             "Function(address, signature, owner)\n--\n\nA compiled function: call it with arrays, "
             "and with threads=N to limit its threads.");

static PyObject *function_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  (void)kwargs;
  unsigned long long address;
  PyObject *signature, *owner;
  if (!PyArg_ParseTuple(args, "KO!O", &address, signature_type, &signature, &owner)) return NULL;
  if (address == 0) {
    PyErr_SetString(PyExc_ValueError, "a function's address is not 0");
    return NULL;
  }
  Function *self = (Function *)new_object(type);
  if (!self) return NULL;
  self->kernel = (tw_kernel)(uintptr_t)address;
  Py_INCREF(signature);
  self->signature = signature;
  Py_INCREF(owner);
  self->owner = owner;
  return (PyObject *)self;
}

static int function_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((Function *)object)->owner);
  return 0;
}

static void function_dealloc(PyObject *object) {
  PyObject_GC_UnTrack(object);
  Py_XDECREF(((Function *)object)->signature);
  Py_XDECREF(((Function *)object)->owner);
  free_object(object);
}

bool read_threads(PyObject *kwargs, int *threads) {
  *threads = 0;
  if (!kwargs) return true;
  static char *names[] = {"threads", NULL};
  PyObject *none = PyTuple_New(0);
  bool parsed = none && PyArg_ParseTupleAndKeywords(none, kwargs, "|$i", names, threads);
  Py_XDECREF(none);
  return parsed;
}

static PyObject *function_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  const Function *self = (const Function *)object;
  int threads;
  if (!read_threads(kwargs, &threads)) return NULL;
  return run(self->kernel, signature_in(self->signature), args, threads);
}

static PyObject *get_address(PyObject *object, void *unused) {
  (void)unused;
  return PyLong_FromUnsignedLongLong((uintptr_t)((const Function *)object)->kernel);
}

static PyObject *get_name(PyObject *object, void *unused) {
  (void)unused;
  return PyUnicode_FromString(signature_in(((const Function *)object)->signature)->name);
}

static PyGetSetDef function_attributes[] = {
    {"address", get_address, NULL, "The address of the native function.", NULL},
    {"name", get_name, NULL, "The name that errors give.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- types ---- */

static PyType_Slot signature_slots[] = {
    {Py_tp_doc, (void *)signature_doc},
    {Py_tp_new, signature_new},
    {Py_tp_dealloc, signature_dealloc},
    {0, NULL},
};

static PyType_Spec signature_spec = {
    .name = "tilewright.runtime._native.Signature",
    .basicsize = sizeof(Signature),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = signature_slots,
};

static PyType_Slot function_slots[] = {
    {Py_tp_doc, (void *)function_doc},
    {Py_tp_new, function_new},
    {Py_tp_dealloc, function_dealloc},
    {Py_tp_traverse, function_traverse},
    {Py_tp_call, function_call},
    {Py_tp_getset, function_attributes},
    {0, NULL},
};

static PyType_Spec function_spec = {
    .name = "tilewright.runtime._native.Function",
    .basicsize = sizeof(Function),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = function_slots,
};

bool call_init(PyObject *module) {
  signature_type = (PyTypeObject *)PyType_FromSpec(&signature_spec);
  function_type = (PyTypeObject *)PyType_FromSpec(&function_spec);
  return signature_type && function_type &&
         PyModule_AddObjectRef(module, "Signature", (PyObject *)signature_type) == 0 &&
         PyModule_AddObjectRef(module, "Function", (PyObject *)function_type) == 0;
}
