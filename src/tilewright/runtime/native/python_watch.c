/* `_native.Watch`: whether PyTorch tensors have the same addresses and versions as before.
 *
 * A model has hundreds of weights, checked in every call: Python getters would cost more than
 * PyTorch's own overhead. PyTorch's functions take the address of the pointer to a tensor, which is
 * in the tensor's Python object, `offset` bytes from its beginning.
 */
#include <string.h>

#include "python_native.h"

typedef int32_t (*read_address)(void *handle, void **found); /* aoti_torch_get_data_ptr */
typedef int64_t (*read_version)(const void *handle);         /* at::TensorBase::_version */

typedef struct {
  void *tensor; /* PyTorch's own, which a Python object may exchange */
  void *address;
  int64_t version;
} state;

typedef struct {
  Py_ssize_t place; /* index among the inputs of a call */
  PyObject *object; /* kept alive by `tensors` of the watch */
  state before;
} watched;

typedef struct {
  PyObject_HEAD
  PyObject *tensors;
  read_address address;
  read_version version;
  Py_ssize_t offset, count;
  watched *all;
} Watch;

static PyTypeObject *watch_type;

PyDoc_STRVAR(watch_doc,
             "Watch(places, tensors, address, version, offset)\n--\n\nRemembers where tensors "
             "are, and their versions. `address` and `version` are where the functions "
             "aoti_torch_get_data_ptr and at::TensorBase::_version are, `offset` where in an "
             "object of Python the pointer to its tensor lies.");

static void *tensor_of(const Watch *self, PyObject *object) {
  void *found;
  memcpy(&found, (char *)object + self->offset, sizeof found);
  return found;
}

static bool look(const Watch *self, PyObject *object, state *found) {
  void *handle = (char *)object + self->offset;
  found->tensor = tensor_of(self, object);
  if (self->address(handle, &found->address) != 0) {
    PyErr_SetString(PyExc_RuntimeError, "a tensor has no address");
    return false;
  }
  found->version = self->version(handle);
  return true;
}

static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  (void)kwargs;
  PyObject *places, *tensors;
  unsigned long long address, version;
  Py_ssize_t offset;
  if (!PyArg_ParseTuple(args, "O!O!KKn", &PyTuple_Type, &places, &PyTuple_Type, &tensors, &address,
                        &version, &offset)) {
    return NULL;
  }
  Py_ssize_t count = PyTuple_Size(places);
  if (PyTuple_Size(tensors) != count || address == 0 || version == 0) {
    PyErr_SetString(PyExc_ValueError, "a place is needed for each tensor, and who reads of them");
    return NULL;
  }
  Watch *self = (Watch *)new_object(type);
  if (!self) return NULL;
  Py_INCREF(tensors);
  self->tensors = tensors;
  self->address = (read_address)(uintptr_t)address;
  self->version = (read_version)(uintptr_t)version;
  self->offset = offset;
  self->count = count;
  self->all = PyMem_Calloc((size_t)count + 1, sizeof *self->all);
  bool good = self->all != NULL;
  if (!good) PyErr_NoMemory();
  for (Py_ssize_t i = 0; good && i < count; ++i) {
    watched *each = &self->all[i];
    each->object = PyTuple_GetItem(tensors, i);
    each->place = PyLong_AsSsize_t(PyTuple_GetItem(places, i));
    good = !PyErr_Occurred() && look(self, each->object, &each->before);
  }
  if (good) return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static int watch_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((Watch *)object)->tensors);
  return 0;
}

static void watch_dealloc(PyObject *object) {
  Watch *self = (Watch *)object;
  PyObject_GC_UnTrack(object);
  Py_XDECREF(self->tensors);
  PyMem_Free(self->all);
  free_object(object);
}

PyDoc_STRVAR(same_doc,
             "same(inputs)\n--\n\nWhether a call has the very tensors, neither moved nor changed.");

static PyObject *watch_same(PyObject *object, PyObject *inputs) {
  const Watch *self = (const Watch *)object;
  if (!PyTuple_Check(inputs)) {
    PyErr_SetString(PyExc_TypeError, "the inputs of a call are a tuple");
    return NULL;
  }
  Py_ssize_t given = PyTuple_Size(inputs);
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    const watched *each = &self->all[i];
    bool is_there = each->place >= 0 && each->place < given;
    if (!is_there || PyTuple_GetItem(inputs, each->place) != each->object) Py_RETURN_FALSE;
    /* Another tensor may have no version counter: its version is not read. */
    if (tensor_of(self, each->object) != each->before.tensor) Py_RETURN_FALSE;
    state now;
    if (!look(self, each->object, &now)) return NULL;
    if (now.address != each->before.address || now.version != each->before.version) {
      Py_RETURN_FALSE;
    }
  }
  Py_RETURN_TRUE;
}

static PyMethodDef watch_methods[] = {
    {"same", watch_same, METH_O, same_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot watch_slots[] = {
    {Py_tp_doc, (void *)watch_doc}, {Py_tp_new, watch_new},
    {Py_tp_dealloc, watch_dealloc}, {Py_tp_traverse, watch_traverse},
    {Py_tp_methods, watch_methods}, {0, NULL},
};

static PyType_Spec watch_spec = {
    .name = "tilewright.runtime._native.Watch",
    .basicsize = sizeof(Watch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = watch_slots,
};

bool watch_init(PyObject *module) {
  watch_type = (PyTypeObject *)PyType_FromSpec(&watch_spec);
  return watch_type && PyModule_AddObjectRef(module, "Watch", (PyObject *)watch_type) == 0;
}
