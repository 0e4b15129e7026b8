/* `_native.Exchange`: exchange tensors with another library through DLPack's C functions.
 *
 * A capsule, a Python call and an array object for each tensor cost more than a small kernel. The
 * library's own functions fill a DLTensor, or make a tensor from one, in a fraction of that.
 */
#include <stdlib.h>
#include <string.h>

#include "python_native.h"

struct Exchange {
  PyObject_HEAD
  PyTypeObject *kind; /* the library's tensor type */
  const DLPackExchangeAPI *api;
};

PyTypeObject *exchange_type;
static PyObject *str_contiguous;

PyDoc_STRVAR(exchange_doc,
             "Exchange(kind)\n--\n\nHow tensors of a library travel: `kind` is their type, which "
             "has a method `contiguous` and the attribute `__dlpack_c_exchange_api__`.");

static PyObject *exchange_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  (void)kwargs;
  PyObject *kind;
  if (!PyArg_ParseTuple(args, "O!", &PyType_Type, &kind)) return NULL;
  PyObject *capsule = PyObject_GetAttrString(kind, "__dlpack_c_exchange_api__");
  if (!capsule) return NULL;
  const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule); /* its content is static */
  if (!api) return NULL;
  if (api->header.version.major != DLPACK_MAJOR_VERSION || !api->dltensor_from_py_object_no_sync) {
    PyErr_SetString(PyExc_ValueError, "the library offers another version of DLPack's exchange");
    return NULL;
  }
  Exchange *self = (Exchange *)new_object(type);
  if (!self) return NULL;
  Py_INCREF(kind);
  self->kind = (PyTypeObject *)kind;
  self->api = api;
  return (PyObject *)self;
}

static int exchange_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT((PyObject *)((Exchange *)object)->kind);
  return 0;
}

static void exchange_dealloc(PyObject *object) {
  PyObject_GC_UnTrack(object);
  Py_XDECREF((PyObject *)((Exchange *)object)->kind);
  free_object(object);
}

/* ---- lending ---- */

bool exchange_has(const Exchange *self, PyObject *object) {
  return PyObject_TypeCheck(object, self->kind);
}

/* The caller keeps the tensor alive; the loan owns a compact copy if the tensor is not compact. */
bool exchange_lend(const Exchange *self, PyObject *tensor, loan *l) {
  l->held = NULL;
  l->buffer.obj = NULL;
  l->read_only = false;
  if (self->api->dltensor_from_py_object_no_sync(tensor, &l->tensor) != 0) return false;
  if (is_compact(&l->tensor)) return true;
  l->held = PyObject_CallMethodObjArgs(tensor, str_contiguous, NULL);
  if (!l->held) return false;
  if (self->api->dltensor_from_py_object_no_sync(l->held, &l->tensor) == 0) return true;
  Py_CLEAR(l->held);
  return false;
}

/* ---- adopting ---- */

typedef struct {
  DLManagedTensorVersioned managed;
  int64_t dims[]; /* shape, strides */
} owner;

static void give_back(DLManagedTensorVersioned *managed) {
  tw_workspace_free(managed->manager_ctx);
  free(managed);
}

PyObject *exchange_adopt(const Exchange *self, int32_t ndim, const int64_t *shape, DLDataType dtype,
                         void *workspace) {
  owner *made = malloc(sizeof *made + 2 * (size_t)ndim * sizeof *made->dims);
  if (!made) {
    tw_workspace_free(workspace);
    return PyErr_NoMemory();
  }
  int64_t compact = 1;
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    made->dims[axis] = shape[axis];
    made->dims[ndim + axis] = compact;
    compact *= shape[axis];
  }
  made->managed = (DLManagedTensorVersioned){
      .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
      .manager_ctx = workspace,
      .deleter = give_back,
      .flags = dtype.bits < 8 ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0,
      .dl_tensor = {workspace, {kDLCPU, 0}, ndim, dtype, made->dims, made->dims + ndim, 0},
  };
  void *tensor;
  if (self->api->managed_tensor_to_py_object_no_sync(&made->managed, &tensor) == 0) return tensor;
  give_back(&made->managed); /* release what was not consumed */
  return NULL;
}

/* ---- the type ---- */

static PyType_Slot exchange_slots[] = {
    {Py_tp_doc, (void *)exchange_doc},
    {Py_tp_new, exchange_new},
    {Py_tp_dealloc, exchange_dealloc},
    {Py_tp_traverse, exchange_traverse},
    {0, NULL},
};

static PyType_Spec exchange_spec = {
    .name = "tilewright.runtime._native.Exchange",
    .basicsize = sizeof(Exchange),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = exchange_slots,
};

bool exchange_init(PyObject *module) {
  str_contiguous = PyUnicode_InternFromString("contiguous");
  exchange_type = (PyTypeObject *)PyType_FromSpec(&exchange_spec);
  return str_contiguous && exchange_type &&
         PyModule_AddObjectRef(module, "Exchange", (PyObject *)exchange_type) == 0;
}
