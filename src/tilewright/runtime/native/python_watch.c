/* `_native.Watch`: whether tensors of PyTorch are still where they were, and unchanged.
 *
 * A model has hundreds of weights, and every call asks this of each. A tensor's version is read as
 * an attribute; its address by a function of PyTorch's stable C interface, which takes a pointer
 * to what the tensor's Python object holds: `offset` bytes from its beginning.
 */
#include <string.h>

#include "python_native.h"

typedef int32_t (*read_address)(void *handle, void **address);

typedef struct {
  void *address;
  long long version;
} state;

typedef struct {
  Py_ssize_t place; /* among the inputs of a call */
  PyObject *tensor; /* which `tensors` of the watch keep alive */
  state before;
} watched;

typedef struct {
  PyObject_HEAD
  PyObject *tensors;
  PyObject *version; /* the descriptor of the attribute, which all their types share */
  descrgetfunc get_version;
  read_address read;
  Py_ssize_t offset, count;
  watched *all;
} Watch;

static PyTypeObject *watch_type;
static PyObject *str_version;

PyDoc_STRVAR(watch_doc,
             "Watch(places, tensors, read, offset)\n--\n\nRemembers where tensors are, and their "
             "versions. `read` is the address of aoti_torch_get_data_ptr, `offset` where in an "
             "object of Python the tensor lies.");

static bool look(const Watch *self, PyObject *tensor, state *found) {
  if (self->read((char *)tensor + self->offset, &found->address) != 0) {
    PyErr_SetString(PyExc_RuntimeError, "a tensor has no address");
    return false;
  }
  PyObject *version = self->get_version(self->version, tensor, (PyObject *)Py_TYPE(tensor));
  if (!version) return false;
  found->version = PyLong_AsLongLong(version);
  Py_DECREF(version);
  return found->version != -1 || !PyErr_Occurred();
}

/* The descriptor of the tensors' versions, found once instead of in every call. */
static bool find_version(Watch *self) {
  Py_ssize_t count = PyTuple_Size(self->tensors);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *type = (PyObject *)Py_TYPE(PyTuple_GetItem(self->tensors, i));
    PyObject *found = PyObject_GetAttr(type, str_version);
    if (!found) return false;
    bool is_same = !self->version || self->version == found;
    if (self->version) {
      Py_DECREF(found);
    } else {
      self->version = found;
    }
    if (!is_same) {
      PyErr_SetString(PyExc_TypeError, "the tensors' types have versions of their own");
      return false;
    }
  }
  if (count > 0) {
    self->get_version = (descrgetfunc)PyType_GetSlot(Py_TYPE(self->version), Py_tp_descr_get);
  }
  if (count == 0 || self->get_version) return true;
  PyErr_SetString(PyExc_TypeError, "a tensor's version is no attribute that is worked out");
  return false;
}

static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  (void)kwargs;
  PyObject *places, *tensors;
  unsigned long long read;
  Py_ssize_t offset;
  if (!PyArg_ParseTuple(args, "O!O!Kn", &PyTuple_Type, &places, &PyTuple_Type, &tensors, &read,
                        &offset)) {
    return NULL;
  }
  Py_ssize_t count = PyTuple_Size(places);
  if (PyTuple_Size(tensors) != count || read == 0) {
    PyErr_SetString(PyExc_ValueError, "a place is needed for each tensor, and who reads addresses");
    return NULL;
  }
  Watch *self = (Watch *)new_object(type);
  if (!self) return NULL;
  Py_INCREF(tensors);
  self->tensors = tensors;
  self->read = (read_address)(uintptr_t)read;
  self->offset = offset;
  self->count = count;
  self->all = PyMem_Calloc((size_t)count + 1, sizeof *self->all);
  bool good = self->all != NULL;
  if (!good) PyErr_NoMemory();
  good = good && find_version(self);
  for (Py_ssize_t i = 0; good && i < count; ++i) {
    watched *each = &self->all[i];
    each->tensor = PyTuple_GetItem(tensors, i);
    each->place = PyLong_AsSsize_t(PyTuple_GetItem(places, i));
    good = !PyErr_Occurred() && look(self, each->tensor, &each->before);
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
  Py_XDECREF(self->version);
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
    if (!is_there || PyTuple_GetItem(inputs, each->place) != each->tensor) Py_RETURN_FALSE;
    state now;
    if (!look(self, each->tensor, &now)) return NULL;
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
  str_version = PyUnicode_InternFromString("_version");
  watch_type = (PyTypeObject *)PyType_FromSpec(&watch_spec);
  return str_version && watch_type &&
         PyModule_AddObjectRef(module, "Watch", (PyObject *)watch_type) == 0;
}
