/* `_native.Tensor`: memory with a shape, the C part of `tilewright.Array`.
 *
 * It owns aligned memory or keeps another array's alive, and exports itself through the buffer
 * protocol and DLPack. Everything else is in Python, in array.py.
 */
#include <stdlib.h>

#include "python_native.h"

PyTypeObject *tensor_type;

static int64_t element_bytes(DLDataType dtype) {
  return (int64_t)((dtype.bits + 7) / 8) * dtype.lanes;
}

bool is_compact(const DLTensor *tensor) {
  int64_t expected = 1;
  bool compact = true;
  for (int32_t axis = tensor->ndim - 1; axis >= 0; --axis) {
    int64_t extent = tensor->shape[axis];
    if (extent == 0) return true;
    if (tensor->strides && extent != 1 && tensor->strides[axis] != expected) compact = false;
    expected *= extent;
  }
  return compact;
}

/* ---- making ---- */

/* A tensor without memory yet; NULL strides mean compact. */
static Tensor *make(PyTypeObject *type, int32_t ndim, const int64_t *shape, const int64_t *strides,
                    DLDataType dtype, DLDevice device) {
  Tensor *self = (Tensor *)new_object(type);
  if (!self) return NULL;
  self->dims = PyMem_Malloc((size_t)(3 * ndim + 1) * sizeof *self->dims);
  if (!self->dims) {
    Py_DECREF(self);
    return (Tensor *)PyErr_NoMemory();
  }
  int64_t compact = 1, size = element_bytes(dtype);
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    self->dims[axis] = shape[axis];
    self->dims[ndim + axis] = strides ? strides[axis] : compact;
    self->dims[2 * ndim + axis] = self->dims[ndim + axis] * size;
    compact *= shape[axis];
  }
  self->tensor = (DLTensor){NULL, device, ndim, dtype, self->dims, self->dims + ndim, 0};
  return self;
}

int64_t compact_bytes(int32_t ndim, const int64_t *shape, DLDataType dtype) {
  int64_t size = element_bytes(dtype);
  bool empty = false, over = false;
  for (int32_t axis = 0; axis < ndim; ++axis) {
    if (shape[axis] < 0) {
      tw_errorf(TW_ERROR_SHAPE, "dimension %d is negative: %lld", axis, (long long)shape[axis]);
      return -1;
    }
    empty = empty || shape[axis] == 0;
    over = over || __builtin_mul_overflow(size, shape[axis] ? shape[axis] : 1, &size);
  }
  if (!over) return empty ? 0 : size;
  tw_error(TW_ERROR_NO_MEMORY, "the array is larger than memory");
  return -1;
}

/* Read a sequence of integers into `values`; its length, or -1 with an exception. */
static int32_t read_dims(PyObject *sequence, int64_t values[MAX_NDIM]) {
  Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return -1;
  if (count > MAX_NDIM) {
    tw_errorf(TW_ERROR_RANK, "it has %zd dimensions, at most %d are possible", count, MAX_NDIM);
    raise_last();
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *item = PySequence_GetItem(sequence, i);
    PyObject *integer = item ? PyNumber_Index(item) : NULL; /* also of NumPy */
    values[i] = integer ? PyLong_AsLongLong(integer) : -1;
    Py_XDECREF(item);
    Py_XDECREF(integer);
    if (PyErr_Occurred()) return -1;
  }
  return (int32_t)count;
}

PyDoc_STRVAR(empty_doc, "_empty(shape, code, bits, lanes=1)\n--\n\nNew, uncleared CPU memory.");

static PyObject *tensor_empty(PyObject *type, PyObject *args) {
  PyObject *sequence;
  unsigned char code, bits;
  unsigned short lanes = 1;
  int64_t shape[MAX_NDIM];
  if (!PyArg_ParseTuple(args, "Obb|H", &sequence, &code, &bits, &lanes)) return NULL;
  int32_t ndim = read_dims(sequence, shape);
  if (ndim < 0) return NULL;
  DLDataType dtype = {code, bits, lanes};
  int64_t size_bytes = compact_bytes(ndim, shape, dtype);
  if (size_bytes < 0) return raise_last();
  Tensor *self = make((PyTypeObject *)type, ndim, shape, NULL, dtype, (DLDevice){kDLCPU, 0});
  if (!self) return NULL;
  self->tensor.data = self->memory = tw_alloc(size_bytes);
  if (self->memory) return (PyObject *)self;
  Py_DECREF(self);
  return raise_last();
}

PyObject *tensor_adopt(PyTypeObject *type, int32_t ndim, const int64_t *shape, DLDataType dtype,
                       void *workspace) {
  Tensor *self = make(type, ndim, shape, NULL, dtype, (DLDevice){kDLCPU, 0});
  if (!self) {
    tw_workspace_free(workspace);
    return NULL;
  }
  self->tensor.data = self->memory = workspace;
  self->pooled = true;
  return (PyObject *)self;
}

PyDoc_STRVAR(
    borrow_doc,
    "_borrow(array)\n--\n\nAnother array's memory, without a copy: anything of NumPy, with "
    "__dlpack__ or with a buffer.");

static PyObject *tensor_borrow(PyObject *type, PyObject *array) {
  loan *from = PyMem_Malloc(sizeof *from);
  if (!from) return PyErr_NoMemory();
  if (!loan_open(from, array, (blame){NULL, NULL})) {
    PyMem_Free(from);
    return NULL;
  }
  Tensor *self = make((PyTypeObject *)type, from->tensor.ndim, from->tensor.shape,
                      from->tensor.strides, from->tensor.dtype, from->tensor.device);
  if (!self) {
    loan_close(from);
    PyMem_Free(from);
    return NULL;
  }
  self->tensor.data = from->tensor.data;
  self->tensor.byte_offset = from->tensor.byte_offset;
  self->borrowed = from;
  self->read_only = from->read_only;
  Py_INCREF(array);
  self->base = array;
  return (PyObject *)self;
}

PyDoc_STRVAR(from_address_doc,
             "_from_address(address, shape, strides, code, bits, lanes, device, read_only, base)\n"
             "--\n\nMemory at an address that `base` keeps alive. `strides` counts elements, or is "
             "None; `device` is a pair of DLPack device type and number.");

static PyObject *tensor_from_address(PyObject *type, PyObject *args) {
  unsigned long long address;
  PyObject *shape_sequence, *strides_sequence, *base;
  unsigned char code, bits;
  unsigned short lanes;
  DLDevice device;
  int read_only;
  int64_t shape[MAX_NDIM], strides[MAX_NDIM];
  if (!PyArg_ParseTuple(args, "KOObbH(ii)pO", &address, &shape_sequence, &strides_sequence, &code,
                        &bits, &lanes, &device.device_type, &device.device_id, &read_only, &base)) {
    return NULL;
  }
  int32_t ndim = read_dims(shape_sequence, shape);
  if (ndim < 0) return NULL;
  bool compact = strides_sequence == Py_None;
  if (!compact) {
    int32_t given = read_dims(strides_sequence, strides);
    if (given < 0) return NULL;
    if (given != ndim) return raise_code(TW_ERROR_STRIDES, "shape and strides differ in length");
  }
  DLDataType dtype = {code, bits, lanes};
  if (compact_bytes(ndim, shape, dtype) < 0) return raise_last();
  Tensor *self = make((PyTypeObject *)type, ndim, shape, compact ? NULL : strides, dtype, device);
  if (!self) return NULL;
  self->tensor.data = (void *)(uintptr_t)address;
  self->read_only = read_only;
  Py_INCREF(base);
  self->base = base;
  return (PyObject *)self;
}

static void tensor_dealloc(PyObject *object) {
  Tensor *self = (Tensor *)object;
  if (self->borrowed) {
    loan_close(self->borrowed);
    PyMem_Free(self->borrowed);
  }
  if (self->pooled) {
    tw_workspace_free(self->memory);
  } else {
    tw_free(self->memory);
  }
  PyMem_Free(self->dims);
  Py_XDECREF(self->base);
  free_object(object);
}

/* ---- lending: the buffer protocol ---- */

/* The format character, or NULL for types the protocol does not know (bf16, f8, i4). */
static const char *format_of(DLDataType dtype) {
  if (dtype.lanes != 1) return NULL;
  switch (dtype.code << 8 | dtype.bits) {
    case kDLInt << 8 | 8: return "b";
    case kDLInt << 8 | 16: return "h";
    case kDLInt << 8 | 32: return "i";
    case kDLInt << 8 | 64: return "q";
    case kDLUInt << 8 | 8: return "B";
    case kDLUInt << 8 | 16: return "H";
    case kDLUInt << 8 | 32: return "I";
    case kDLUInt << 8 | 64: return "Q";
    case kDLFloat << 8 | 16: return "e";
    case kDLFloat << 8 | 32: return "f";
    case kDLFloat << 8 | 64: return "d";
    case kDLBool << 8 | 8: return "?";
    default: return NULL;
  }
}

static int refuse_buffer(const char *why) {
  PyErr_SetString(PyExc_BufferError, why);
  return -1;
}

static int tensor_getbuffer(PyObject *object, Py_buffer *view, int flags) {
  const Tensor *self = (const Tensor *)object;
  view->obj = NULL;
  const char *format = format_of(self->tensor.dtype);
  if (!format) return refuse_buffer("the buffer protocol has no such element type; use DLPack");
  if (self->tensor.device.device_type != kDLCPU) return refuse_buffer("the memory is a device's");
  if (flags & PyBUF_WRITABLE && self->read_only) return refuse_buffer("the array is read-only");
  bool wants_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
  bool wants_order = flags & (PyBUF_C_CONTIGUOUS & ~PyBUF_STRIDES);
  if ((!wants_strides || wants_order) && !is_compact(&self->tensor)) {
    return refuse_buffer("the array is not contiguous");
  }
  int32_t ndim = self->tensor.ndim;
  view->buf = (char *)self->tensor.data + self->tensor.byte_offset;
  view->itemsize = (Py_ssize_t)element_bytes(self->tensor.dtype);
  view->len = view->itemsize;
  for (int32_t axis = 0; axis < ndim; ++axis) view->len *= self->tensor.shape[axis];
  view->readonly = self->read_only;
  view->ndim = ndim;
  view->format = flags & PyBUF_FORMAT ? (char *)format : NULL;
  view->shape = flags & PyBUF_ND ? (Py_ssize_t *)self->dims : NULL;
  view->strides = wants_strides ? (Py_ssize_t *)self->dims + 2 * ndim : NULL;
  view->suboffsets = NULL;
  view->internal = NULL;
  Py_INCREF(object);
  view->obj = object;
  return 0;
}

/* ---- lending: DLPack ---- */

static void let_go(void *self) {
  PyGILState_STATE state = PyGILState_Ensure(); /* consumers may delete on any thread */
  Py_DECREF((PyObject *)self);
  PyGILState_Release(state);
}

static void delete_legacy(DLManagedTensor *managed) {
  let_go(managed->manager_ctx);
  free(managed);
}

static void delete_versioned(DLManagedTensorVersioned *managed) {
  let_go(managed->manager_ctx);
  free(managed);
}

/* A consumer renames the capsule and deletes the tensor itself. */
static void delete_unconsumed(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor")) {
    delete_legacy(PyCapsule_GetPointer(capsule, "dltensor"));
  } else if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    delete_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
  }
}

PyDoc_STRVAR(export_doc,
             "_export(versioned)\n--\n\nA DLPack capsule that keeps this tensor alive.");

static PyObject *tensor_export(PyObject *object, PyObject *versioned) {
  const Tensor *self = (const Tensor *)object;
  int modern = PyObject_IsTrue(versioned);
  if (modern < 0) return NULL;
  bool padded = self->tensor.dtype.bits < 8;
  if (!modern && (self->read_only || padded)) {
    PyErr_SetString(PyExc_BufferError, padded ? "padded elements under 8 bits need DLPack 1.1"
                                              : "a read-only array needs DLPack 1.0");
    return NULL;
  }
  void *managed;
  if (modern) {
    DLManagedTensorVersioned *made = managed = malloc(sizeof *made);
    if (!made) return PyErr_NoMemory();
    uint64_t flags = (self->read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0) |
                     (padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0);
    *made = (DLManagedTensorVersioned){{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                                       object,
                                       delete_versioned,
                                       flags,
                                       self->tensor};
  } else {
    DLManagedTensor *made = managed = malloc(sizeof *made);
    if (!made) return PyErr_NoMemory();
    *made = (DLManagedTensor){self->tensor, object, delete_legacy};
  }
  PyObject *capsule =
      PyCapsule_New(managed, modern ? "dltensor_versioned" : "dltensor", delete_unconsumed);
  if (!capsule) {
    free(managed);
    return NULL;
  }
  Py_INCREF(object);
  return capsule;
}

/* ---- attributes ---- */

PyObject *tuple_of(const int64_t *values, int32_t count) {
  PyObject *tuple = PyTuple_New(count);
  for (int32_t i = 0; tuple && i < count; ++i) {
    PyObject *value = PyLong_FromLongLong(values[i]);
    if (!value || PyTuple_SetItem(tuple, i, value) != 0) Py_CLEAR(tuple);
  }
  return tuple;
}

static PyObject *get_shape(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  return tuple_of(self->tensor.shape, self->tensor.ndim);
}

static PyObject *get_strides(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  return tuple_of(self->tensor.strides, self->tensor.ndim);
}

static PyObject *get_address(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  return PyLong_FromUnsignedLongLong((uintptr_t)self->tensor.data + self->tensor.byte_offset);
}

static PyObject *get_dtype_code(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  DLDataType dtype = self->tensor.dtype;
  return Py_BuildValue("iii", dtype.code, dtype.bits, dtype.lanes);
}

static PyObject *get_device_code(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  return Py_BuildValue("ii", self->tensor.device.device_type, self->tensor.device.device_id);
}

static PyObject *get_read_only(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  return PyBool_FromLong(self->read_only);
}

static PyObject *get_is_contiguous(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  return PyBool_FromLong(is_compact(&self->tensor));
}

static PyObject *get_base(PyObject *object, void *unused) {
  (void)unused;
  const Tensor *self = (const Tensor *)object;
  PyObject *base = self->base ? self->base : Py_None;
  Py_INCREF(base);
  return base;
}

static PyGetSetDef tensor_attributes[] = {
    {"shape", get_shape, NULL, "The extents.", NULL},
    {"strides", get_strides, NULL, "The strides, in elements.", NULL},
    {"address", get_address, NULL, "Where the first element lies.", NULL},
    {"_dtype_code", get_dtype_code, NULL, "DLPack's code, bits and lanes.", NULL},
    {"_device_code", get_device_code, NULL, "DLPack's device type and number.", NULL},
    {"read_only", get_read_only, NULL, "Whether writing is forbidden.", NULL},
    {"is_contiguous", get_is_contiguous, NULL, "Whether it is compact, row major.", NULL},
    {"base", get_base, NULL, "What keeps borrowed memory alive, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef tensor_methods[] = {
    {"_empty", tensor_empty, METH_VARARGS | METH_CLASS, empty_doc},
    {"_borrow", tensor_borrow, METH_O | METH_CLASS, borrow_doc},
    {"_from_address", tensor_from_address, METH_VARARGS | METH_CLASS, from_address_doc},
    {"_export", tensor_export, METH_O, export_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_doc, "Memory with a shape; made by its class methods."},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_attributes},
    {Py_bf_getbuffer, tensor_getbuffer},
    {0, NULL},
};

static PyType_Spec tensor_spec = {
    .name = "tilewright.runtime._native.Tensor",
    .basicsize = sizeof(Tensor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = tensor_slots,
};

bool tensor_init(PyObject *module) {
  tensor_type = (PyTypeObject *)PyType_FromSpec(&tensor_spec);
  return tensor_type && PyModule_AddObjectRef(module, "Tensor", (PyObject *)tensor_type) == 0;
}
