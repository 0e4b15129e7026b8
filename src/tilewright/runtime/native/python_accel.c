/* Python bindings of the accelerator driver, on a capsule. `tilewright.runtime.accel` wraps them in
 * a class. */
#include "python_native.h"

#include <string.h>

#include "accel/accel.h"

#define NAME "tilewright.accelerator"

static void close_device(PyObject *capsule) { tw_accel_close(PyCapsule_GetPointer(capsule, NAME)); }

PyObject *accel_open(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer words;
  const char *backend;
  if (!PyArg_ParseTuple(args, "y*s", &words, &backend)) return NULL;
  tw_accel *device;
  int32_t code =
      tw_accel_open(words.buf, words.len / (Py_ssize_t)sizeof(int32_t), backend, &device);
  PyBuffer_Release(&words);
  if (code != TW_OK) return raise_last();
  PyObject *capsule = PyCapsule_New(device, NAME, close_device);
  if (!capsule) tw_accel_close(device);
  return capsule;
}

static tw_accel *device_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, NAME); }

/* accel_use(device, addresses): of the kernels in the order of tw_accel_kernels */
PyObject *accel_use(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule, *list;
  if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyTuple_Type, &list)) return NULL;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  uintptr_t addresses[1 + TW_FUNCTIONS];
  if (PyTuple_Size(list) != 1 + TW_FUNCTIONS) {
    PyErr_Format(PyExc_ValueError, "%d kernels are needed", 1 + TW_FUNCTIONS);
    return NULL;
  }
  for (Py_ssize_t i = 0; i < 1 + TW_FUNCTIONS; ++i) {
    addresses[i] = (uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GetItem(list, i));
  }
  if (PyErr_Occurred()) return NULL;
  tw_accel_kernels kernels;
  _Static_assert(sizeof kernels == sizeof addresses, "a pointer each");
  memcpy(&kernels, addresses, sizeof kernels);
  tw_accel_use(device, &kernels);
  Py_RETURN_NONE;
}

PyObject *accel_alloc(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule;
  long long bytes;
  if (!PyArg_ParseTuple(args, "OL", &capsule, &bytes)) return NULL;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  int32_t number;
  void *host;
  if (tw_accel_alloc(device, bytes, &number, &host) != TW_OK) return raise_last();
  return Py_BuildValue("iK", (int)number, (unsigned long long)(uintptr_t)host);
}

PyObject *accel_free(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule;
  int number;
  if (!PyArg_ParseTuple(args, "Oi", &capsule, &number)) return NULL;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  if (tw_accel_free(device, number) != TW_OK) return raise_last();
  Py_RETURN_NONE;
}

/* accel_sync(device, buffer, to_device, at, bytes) */
PyObject *accel_sync(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule;
  int number, to_device;
  long long at, bytes;
  if (!PyArg_ParseTuple(args, "OipLL", &capsule, &number, &to_device, &at, &bytes)) return NULL;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  int32_t code = to_device ? tw_accel_flush(device, number, at, bytes)
                           : tw_accel_invalidate(device, number, at, bytes);
  if (code != TW_OK) return raise_last();
  Py_RETURN_NONE;
}

PyObject *accel_submit(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule, *list;
  Py_buffer words;
  long long tasks;
  unsigned int writable;
  if (!PyArg_ParseTuple(args, "Oy*LO!I", &capsule, &words, &tasks, &PyTuple_Type, &list,
                        &writable)) {
    return NULL;
  }
  tw_accel *device = device_of(capsule);
  Py_ssize_t count = PyTuple_Size(list);
  int32_t buffers[TW_ACCEL_BASES] = {0};
  for (Py_ssize_t i = 0; device && i < count && i < TW_ACCEL_BASES; ++i) {
    buffers[i] = (int32_t)PyLong_AsLong(PyTuple_GetItem(list, i));
  }
  if (PyErr_Occurred()) device = NULL;
  int32_t code = TW_OK;
  if (device) {
    code = tw_accel_submit(device, words.buf, tasks, buffers, (int32_t)count, writable);
  }
  PyBuffer_Release(&words);
  if (!device) return NULL;
  if (code != TW_OK) return raise_last();
  Py_RETURN_NONE;
}

PyObject *accel_wait(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule;
  long long timeout;
  if (!PyArg_ParseTuple(args, "OL", &capsule, &timeout)) return NULL;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  PyThreadState *state = PyEval_SaveThread();
  int32_t code = tw_accel_wait(device, timeout);
  PyEval_RestoreThread(state);
  if (code != TW_OK) return raise_last();
  Py_RETURN_NONE;
}

PyObject *accel_counters(PyObject *module, PyObject *capsule) {
  (void)module;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  int64_t counters[TW_ACCEL_COUNTERS];
  tw_accel_counters(device, counters);
  return tuple_of(counters, TW_ACCEL_COUNTERS);
}

PyObject *accel_times(PyObject *module, PyObject *capsule) {
  (void)module;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  const int64_t *begin, *end;
  int64_t tasks;
  if (tw_accel_times(device, &begin, &end, &tasks) != TW_OK) return raise_last();
  return Py_BuildValue("NN", tuple_of(begin, (int32_t)tasks), tuple_of(end, (int32_t)tasks));
}

PyObject *accel_reset(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule;
  long long seed;
  if (!PyArg_ParseTuple(args, "OL", &capsule, &seed)) return NULL;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  tw_accel_reset(device);
  tw_accel_stalls(device, seed);
  Py_RETURN_NONE;
}

PyObject *accel_error(PyObject *module, PyObject *capsule) {
  (void)module;
  tw_accel *device = device_of(capsule);
  if (!device) return NULL;
  int64_t task;
  const char *message;
  int32_t code = tw_accel_error(device, &task, &message);
  return Py_BuildValue("iLs", (int)code, (long long)task, message);
}

/* accel_make(description, words, tasks, rounds, regions): a tuple (bytes, is_writable, per_round,
 * code) per buffer, where code is None or bytes. */
PyObject *accel_make(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer config, words;
  long long tasks, rounds;
  PyObject *list, *made = NULL;
  if (!PyArg_ParseTuple(args, "y*y*LLO!", &config, &words, &tasks, &rounds, &PyTuple_Type, &list)) {
    return NULL;
  }
  tw_accel_region regions[TW_ACCEL_BASES] = {0};
  Py_ssize_t count = PyTuple_Size(list);
  const tw_accel_config *c = config.buf;
  bool ok = count <= TW_ACCEL_BASES && config.len == (Py_ssize_t)sizeof(tw_accel_config) &&
            tasks > 0 && rounds > 0 && c->word_bytes > 0 && tasks <= words.len / c->word_bytes &&
            rounds <= INT32_MAX / tasks;
  if (!ok) PyErr_SetString(PyExc_ValueError, "a description, tasks and at most 16 regions");
  for (Py_ssize_t i = 0; ok && i < count; ++i) {
    long long bytes;
    int is_writable, per_round;
    PyObject *code;
    ok =
        PyArg_ParseTuple(PyTuple_GetItem(list, i), "LppO", &bytes, &is_writable, &per_round, &code);
    if (!ok) break;
    regions[i] = (tw_accel_region){bytes, is_writable, per_round, NULL};
    if (code != Py_None) regions[i].code = (const uint8_t *)PyBytes_AsString(code);
    ok = bytes >= 0 && (code == Py_None || (regions[i].code && PyBytes_Size(code) >= bytes));
  }
  if (ok) made = PyBytes_FromStringAndSize(NULL, ((tasks - 1) * rounds + 1) * c->word_bytes);
  if (made && tw_accel_make(c, words.buf, tasks, rounds, regions, (int32_t)count,
                            (uint8_t *)PyBytes_AsString(made)) != TW_OK) {
    Py_DECREF(made);
    made = raise_last();
  }
  PyBuffer_Release(&config);
  PyBuffer_Release(&words);
  if (!made && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "microcode is too short");
  return made;
}
