/* Shared by the files of the Python extension `tilewright.runtime._native`.
 *
 * The extension uses Python's stable ABI (3.11+): one build serves every later version. It supports
 * one interpreter, like NumPy, so its few global objects are plain statics.
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

/* Free an object after its members. */
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

/* A Python object's memory, borrowed as a DLTensor without a copy. */
typedef struct {
  DLTensor tensor;
  bool read_only;
  int64_t shape[MAX_NDIM], strides[MAX_NDIM];
  PyObject *held;   /* a capsule that keeps the memory alive, or NULL */
  Py_buffer buffer; /* in use when `buffer.obj` is not NULL */
} loan;

/* For error messages; both may be NULL. */
typedef struct {
  const char *function, *argument;
} blame;

/* Borrow an array's memory: by NumPy, a DLPack capsule, the DLPack protocol, or the buffer
 * protocol. On failure an exception is set and there is nothing to close. */
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
  bool pooled;     /* the memory is a workspace, returned to the thread's cache */
  loan *borrowed;  /* from another array, or NULL */
  PyObject *base;  /* keeps foreign memory alive, or NULL */
  bool read_only;
} Tensor;

extern PyTypeObject *tensor_type;
PyObject *tuple_of(const int64_t *values, int32_t count);
/* Whether a tensor is compact, row major; an empty one is. */
bool is_compact(const DLTensor *tensor);
/* The bytes of a compact tensor, or -1 with an error recorded if too large. */
int64_t compact_bytes(int32_t ndim, const int64_t *shape, DLDataType dtype);
/* Make a compact tensor of a workspace, which it owns from now on, also on failure. */
PyObject *tensor_adopt(PyTypeObject *type, int32_t ndim, const int64_t *shape, DLDataType dtype,
                       void *workspace);
bool tensor_init(PyObject *module);

/* ---- tensors of other libraries: python_exchange.c ---- */

typedef struct Exchange Exchange;
extern PyTypeObject *exchange_type;
bool exchange_init(PyObject *module);
/* Whether an object is a tensor of the library. */
bool exchange_has(const Exchange *exchange, PyObject *object);
/* Borrow a tensor's memory, compact. On failure an exception is set, there is nothing to close. */
bool exchange_lend(const Exchange *exchange, PyObject *tensor, loan *l);
/* Make a tensor of the library from a workspace, which it owns from now on, also on failure. */
PyObject *exchange_adopt(const Exchange *exchange, int32_t ndim, const int64_t *shape,
                         DLDataType dtype, void *workspace);

/* ---- calls: python_call.c ---- */

enum { FEW = 8, FEW_SYMBOLS = 16 };

/* The arguments of one call, on the C stack unless there are many. */
typedef struct {
  const tw_signature *signature;
  int32_t n_args;
  int32_t opened; /* number of loans to close */
  const DLTensor **tensors;
  int64_t *symbols;
  loan *loans;
  bool *loaned;
  void *many; /* their memory if they do not fit below */
  const DLTensor *few_tensors[FEW];
  int64_t few_symbols[FEW_SYMBOLS];
  loan few_loans[FEW];
  bool few_loaned[FEW];
} frame;

/* Borrow and check all arguments, those of a library by its exchange, if any. On failure an
 * exception is set and the frame is closed. */
bool open_frame(frame *f, const tw_signature *signature, PyObject *args, const Exchange *exchange);
void close_frame(frame *f);

extern PyTypeObject *signature_type;
const tw_signature *signature_in(PyObject *signature);
/* Read the only keyword argument of calls. */
bool read_threads(PyObject *kwargs, int *threads);

bool call_init(PyObject *module);
PyObject *call_kernel(PyObject *module, PyObject *args);
PyObject *check_arrays(PyObject *module, PyObject *args);

/* ---- models: python_model.c ---- */

bool model_init(PyObject *module);
/* The runtime at an address; 0 is this one. NULL, with an exception set, if its version differs. */
const tw_runtime *runtime_at(unsigned long long address);
PyObject *plan_arena(PyObject *module, PyObject *args);

/* ---- digests: python_digest.c ---- */

PyObject *digest(PyObject *module, PyObject *args);

/* ---- watches: python_watch.c ---- */

bool watch_init(PyObject *module);

/* ---- accelerators: python_accel.c ---- */

PyObject *accel_open(PyObject *module, PyObject *args);
PyObject *accel_use(PyObject *module, PyObject *args);
PyObject *accel_alloc(PyObject *module, PyObject *args);
PyObject *accel_free(PyObject *module, PyObject *args);
PyObject *accel_sync(PyObject *module, PyObject *args);
PyObject *accel_submit(PyObject *module, PyObject *args);
PyObject *accel_wait(PyObject *module, PyObject *args);
PyObject *accel_counters(PyObject *module, PyObject *capsule);
PyObject *accel_times(PyObject *module, PyObject *capsule);
PyObject *accel_reset(PyObject *module, PyObject *args);
PyObject *accel_error(PyObject *module, PyObject *capsule);
PyObject *accel_make(PyObject *module, PyObject *args);

#endif
