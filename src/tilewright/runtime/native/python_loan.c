/* Loans: borrow a Python array's memory as a DLTensor, without a copy.
 *
 * NumPy arrays are read through `__array_struct__`, the C side of NumPy's array interface: it costs
 * less than half of the buffer protocol and, unlike it, supports the extension dtypes of ml_dtypes.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "python_native.h"

/* NumPy's array interface, version 3. */
typedef struct {
  int two; /* must be 2 */
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_ssize_t *shape;
  Py_ssize_t *strides; /* in bytes */
  void *data;
  PyObject *descr;
} array_struct;

enum { NATIVE_ORDER = 0x200, WRITEABLE = 0x400 };

static PyObject *ndarray_type;
static PyObject *dtype_codes; /* extension dtypes: numpy.dtype -> code << 8 | bits */
static PyObject *no_args, *dlpack_kwargs;
static PyObject *str_array_struct, *str_dtype, *str_dlpack;

bool loan_init(void) {
  PyObject *numpy = PyImport_ImportModule("numpy");
  if (!numpy) return false;
  ndarray_type = PyObject_GetAttrString(numpy, "ndarray");
  Py_DECREF(numpy);
  dtype_codes = PyDict_New();
  no_args = PyTuple_New(0);
  dlpack_kwargs =
      Py_BuildValue("{s(ii)}", "max_version", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
  str_array_struct = PyUnicode_InternFromString("__array_struct__");
  str_dtype = PyUnicode_InternFromString("dtype");
  str_dlpack = PyUnicode_InternFromString("__dlpack__");
  return ndarray_type && dtype_codes && no_args && dlpack_kwargs && str_array_struct && str_dtype &&
         str_dlpack;
}

PyObject *register_dtype(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *dtype;
  int code, bits;
  if (!PyArg_ParseTuple(args, "Oii", &dtype, &code, &bits)) return NULL;
  PyObject *packed = PyLong_FromLong(code << 8 | bits);
  if (!packed) return NULL;
  int failed = PyDict_SetItem(dtype_codes, dtype, packed);
  Py_DECREF(packed);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

/* ---- rejections ---- */

static bool refuse(blame who, int32_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool refuse(blame who, int32_t code, const char *format, ...) {
  char why[256];
  va_list values;
  va_start(values, format);
  vsnprintf(why, sizeof why, format, values);
  va_end(values);
  if (who.function) {
    tw_errorf(code, "%s: argument %s: %s", who.function, who.argument, why);
  } else {
    tw_errorf(code, "%s", why);
  }
  raise_last();
  return false;
}

static bool refuse_dtype(blame who, PyObject *dtype) {
  PyObject *text = PyObject_Str(dtype);
  PyObject *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
  if (bytes)
    refuse(who, TW_ERROR_DTYPE, "its dtype is %s, which no kernel takes", PyBytes_AsString(bytes));
  Py_XDECREF(text);
  Py_XDECREF(bytes);
  return false;
}

/* ---- dimensions ---- */

/* Copy a shape and strides in bytes; NULL strides mean compact. */
static bool set_dims(loan *l, blame who, int ndim, const Py_ssize_t *shape,
                     const Py_ssize_t *strides, Py_ssize_t itemsize) {
  if (ndim > MAX_NDIM) {
    return refuse(who, TW_ERROR_RANK, "it has %d dimensions, at most %d are possible", ndim,
                  MAX_NDIM);
  }
  int64_t compact = 1;
  for (int axis = ndim - 1; axis >= 0; --axis) {
    l->shape[axis] = shape[axis];
    if (!strides) {
      l->strides[axis] = compact;
      compact *= shape[axis];
    } else if (strides[axis] % itemsize == 0) {
      l->strides[axis] = strides[axis] / itemsize;
    } else if (shape[axis] <= 1) {
      l->strides[axis] = 1; /* never strided over */
    } else {
      return refuse(who, TW_ERROR_STRIDES,
                    "dimension %d steps by %zd bytes, no multiple of its element's %zd", axis,
                    strides[axis], itemsize);
    }
  }
  l->tensor.ndim = ndim;
  l->tensor.shape = l->shape;
  l->tensor.strides = l->strides;
  return true;
}

/* ---- NumPy ---- */

/* The extension types of ml_dtypes are all reported as opaque bytes, or as floats of one byte. */
static bool find_extension_dtype(loan *l, PyObject *array, blame who) {
  PyObject *dtype = PyObject_GetAttr(array, str_dtype);
  if (!dtype) return false;
  PyObject *packed = PyDict_GetItemWithError(dtype_codes, dtype); /* borrowed */
  bool found = packed != NULL;
  if (found) {
    long value = PyLong_AsLong(packed);
    l->tensor.dtype = (DLDataType){(uint8_t)(value >> 8), (uint8_t)(value & 0xff), 1};
  } else if (!PyErr_Occurred()) {
    refuse_dtype(who, dtype);
  }
  Py_DECREF(dtype);
  return found;
}

static bool find_dtype(loan *l, const array_struct *from, PyObject *array, blame who) {
  uint8_t bits = (uint8_t)(from->itemsize * 8);
  bool is_number = strchr("biufc", from->typekind) && from->itemsize * 8 <= UINT8_MAX;
  if (is_number && !(from->flags & NATIVE_ORDER) && from->itemsize > 1) {
    return refuse(who, TW_ERROR_DTYPE, "its bytes are not in this machine's order");
  }
  switch (is_number ? from->typekind : 0) {
    case 'b': l->tensor.dtype = (DLDataType){kDLBool, 8, 1}; return true;
    case 'i': l->tensor.dtype = (DLDataType){kDLInt, bits, 1}; return true;
    case 'u': l->tensor.dtype = (DLDataType){kDLUInt, bits, 1}; return true;
    case 'c': l->tensor.dtype = (DLDataType){kDLComplex, bits, 1}; return true;
    case 'f':
      l->tensor.dtype = (DLDataType){kDLFloat, bits, 1};
      return from->itemsize > 1 || find_extension_dtype(l, array, who);
    default: return find_extension_dtype(l, array, who);
  }
}

static bool open_numpy(loan *l, PyObject *array, blame who) {
  PyObject *capsule = PyObject_GetAttr(array, str_array_struct);
  if (!capsule) return false;
  const array_struct *from = PyCapsule_GetPointer(capsule, NULL);
  if (!from || !find_dtype(l, from, array, who) ||
      !set_dims(l, who, from->nd, from->shape, from->strides, from->itemsize)) {
    Py_DECREF(capsule);
    return false;
  }
  l->tensor.data = from->data;
  l->read_only = !(from->flags & WRITEABLE);
  l->held = capsule;
  return true;
}

/* ---- DLPack ---- */

/* The capsule, whose reference is taken, is held but not consumed: dropping it releases the
   memory. */
static bool open_capsule(loan *l, PyObject *capsule, blame who) {
  const DLTensor *from = NULL;
  bool packed = false;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->version.major == DLPACK_MAJOR_VERSION) {
      from = &managed->dl_tensor;
      l->read_only = managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
      packed =
          from->dtype.bits < 8 && !(managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
    }
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    from = &((DLManagedTensor *)PyCapsule_GetPointer(capsule, "dltensor"))->dl_tensor;
    l->read_only = false;
    packed = from->dtype.bits < 8;
  }
  bool good = false;
  if (!from) {
    refuse(who, TW_ERROR_NO_ARRAY, "its DLPack capsule is of an unknown kind");
  } else if (packed) {
    refuse(who, TW_ERROR_DTYPE, "its elements of %d bits are packed; one byte each is expected",
           from->dtype.bits);
  } else if (from->ndim > MAX_NDIM) {
    refuse(who, TW_ERROR_RANK, "it has %d dimensions, at most %d are possible", from->ndim,
           MAX_NDIM);
  } else {
    l->tensor = *from;
    l->held = capsule;
    good = true;
  }
  if (!good) Py_DECREF(capsule);
  return good;
}

static bool open_dlpack(loan *l, PyObject *export, blame who) {
  PyObject *capsule = PyObject_Call(export, no_args, dlpack_kwargs);
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { /* older than DLPack 1.0 */
    PyErr_Clear();
    capsule = PyObject_CallNoArgs(export);
  }
  return capsule && open_capsule(l, capsule, who);
}

/* ---- the buffer protocol ---- */

static bool parse_format(DLDataType *dtype, const char *format, Py_ssize_t itemsize) {
  uint8_t bits = (uint8_t)(itemsize * 8), code;
  if (!format) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') {
    format++;
  } else if ((*format == '>' || *format == '!') && itemsize == 1) {
    format++;
  }
  if (*format == '\0' || format[1] != '\0') return false; /* not a scalar format */
  if (strchr("bhilqn", *format)) {
    code = kDLInt;
  } else if (strchr("BHILQN", *format)) {
    code = kDLUInt;
  } else if (strchr("efd", *format)) {
    code = kDLFloat;
  } else if (*format == '?') {
    code = kDLBool;
  } else {
    return false;
  }
  *dtype = (DLDataType){code, bits, 1};
  return true;
}

static bool open_buffer(loan *l, PyObject *array, blame who) {
  if (PyObject_GetBuffer(array, &l->buffer, PyBUF_FULL_RO) != 0) return false;
  const Py_buffer *from = &l->buffer;
  bool good = false;
  if (from->suboffsets) {
    refuse(who, TW_ERROR_STRIDES, "its rows lie in separate buffers");
  } else if (!parse_format(&l->tensor.dtype, from->format, from->itemsize)) {
    refuse(who, TW_ERROR_DTYPE, "its buffer format '%s' is no element type", from->format);
  } else {
    good = set_dims(l, who, from->ndim, from->shape, from->strides, from->itemsize);
  }
  if (!good) {
    PyBuffer_Release(&l->buffer);
    return false;
  }
  l->tensor.data = from->buf;
  l->read_only = from->readonly;
  return true;
}

/* ---- all protocols ---- */

static bool is_ndarray(PyObject *object) {
  return PyObject_TypeCheck(object, (PyTypeObject *)ndarray_type);
}

bool loan_open(loan *l, PyObject *array, blame who) {
  l->held = NULL;
  l->buffer.obj = NULL;
  l->tensor.device = (DLDevice){kDLCPU, 0};
  l->tensor.byte_offset = 0;
  if (is_ndarray(array)) return open_numpy(l, array, who);
  if (PyCapsule_CheckExact(array)) {
    Py_INCREF(array);
    return open_capsule(l, array, who);
  }

  PyObject *export = PyObject_GetAttr(array, str_dlpack);
  if (export) {
    bool good = open_dlpack(l, export, who);
    Py_DECREF(export);
    return good;
  }
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
  PyErr_Clear();
  if (PyObject_CheckBuffer(array)) return open_buffer(l, array, who);

  PyObject *name = PyType_GetName(Py_TYPE(array));
  PyObject *bytes = name ? PyUnicode_AsUTF8String(name) : NULL;
  if (bytes)
    refuse(who, TW_ERROR_NO_ARRAY, "it is no array but of type %s", PyBytes_AsString(bytes));
  Py_XDECREF(name);
  Py_XDECREF(bytes);
  return false;
}

void loan_close(loan *l) {
  Py_CLEAR(l->held);
  if (l->buffer.obj) PyBuffer_Release(&l->buffer);
}
