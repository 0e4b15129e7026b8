/* What the files of the Python extension `tilewright.runtime._native` share.
 *
 * The extension keeps to Python's stable ABI (3.11+): one build serves every later version. It
 * belongs to one interpreter, as NumPy does, so its few global objects are plain statics.
 */
#ifndef TILEWRIGHT_PYTHON_NATIVE_H
#define TILEWRIGHT_PYTHON_NATIVE_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#include "tilewright.h"

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "a shape serves DLPack and buffers alike");

enum { MAX_NDIM = 16 };

/* ---- objects of our types ---- */

static inline PyObject *new_object(PyTypeObject *type) {
  return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

/* Free an object whose members are gone already. */
static inline void free_object(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

/* ---- errors: python_errors.c ---- */

/* Raise the Python exception for a runtime error code; always returns NULL. */
PyObject *raise_code(int32_t code, const char *message);
PyObject *raise_last(void);

PyObject *set_error_factory(PyObject *module, PyObject *factory);

/* ---- loans: python_loan.c ---- */

/* A Python object's memory seen as a DLTensor for a while, without a copy. */
typedef struct {
  DLTensor tensor;
  bool read_only;
  int64_t shape[MAX_NDIM], strides[MAX_NDIM];
  PyObject *held;   /* a capsule that keeps the memory alive, or NULL */
  Py_buffer buffer; /* in use when `buffer.obj` is not NULL */
} loan;

/* Whom to blame in messages; both may be NULL. */
typedef struct {
  const char *function, *argument;
} blame;

/* Borrow an array's memory: NumPy, then DLPack, then the buffer protocol. On failure an exception
 * is set and there is nothing to close. */
bool loan_open(loan *l, PyObject *array, blame who);
void loan_close(loan *l);

bool loan_init(void);
PyObject *register_dtype(PyObject *module, PyObject *args);

/* ---- tensors: python_tensor.c ---- */

typedef struct {
  PyObject_HEAD
  DLTensor tensor; /* its shape and strides point into `dims` */
  int64_t *dims;   /* shape, strides in elements, strides in bytes: ndim each */
  void *memory;    /* owned, or NULL */
  loan *borrowed;  /* from another array, or NULL */
  PyObject *base;  /* keeps foreign memory alive, or NULL */
  bool read_only;
} Tensor;

extern PyTypeObject *tensor_type;
PyObject *tuple_of(const int64_t *values, int32_t count);
bool tensor_init(PyObject *module);

/* ---- calls: python_call.c ---- */

bool call_init(PyObject *module);
PyObject *call_kernel(PyObject *module, PyObject *args);
PyObject *check_arrays(PyObject *module, PyObject *args);

#endif
