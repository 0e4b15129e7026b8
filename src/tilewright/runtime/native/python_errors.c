/* Convert error codes to Python exceptions, by a factory that `tilewright.runtime.errors`
 * registers. */
#include "python_native.h"

static PyObject *factory; /* (code, message) -> exception */

PyObject *set_error_factory(PyObject *module, PyObject *callable) {
  (void)module;
  Py_INCREF(callable);
  Py_XDECREF(factory);
  factory = callable;
  Py_RETURN_NONE;
}

PyObject *raise_code(int32_t code, const char *message) {
  if (!factory) {
    PyErr_SetString(PyExc_RuntimeError, message);
    return NULL;
  }
  PyObject *error = PyObject_CallFunction(factory, "is", (int)code, message);
  if (error) {
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
  }
  return NULL;
}

PyObject *raise_last(void) { return raise_code(tw_last_code(), tw_last_error()); }
