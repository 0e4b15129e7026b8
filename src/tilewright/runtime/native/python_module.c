/* The extension module `tilewright.runtime._native`. Its types are described in _native.pyi. */
#include "python_native.h"

/* Functions that compiled code may call; the just-in-time linker binds these by name. */
#define SYMBOL(name) {#name, (uintptr_t)name}
static PyObject *symbols(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  const struct {
    const char *name;
    uintptr_t address;
  } all[] = {
      SYMBOL(tw_error),
      SYMBOL(tw_errorf),
      SYMBOL(tw_error_dim),
      SYMBOL(tw_last_error),
      SYMBOL(tw_last_code),
      SYMBOL(tw_check_args),
      SYMBOL(tw_alloc),
      SYMBOL(tw_free),
      SYMBOL(tw_workspace_alloc),
      SYMBOL(tw_workspace_free),
      SYMBOL(tw_workspace_trim),
      SYMBOL(tw_parallel_for),
      SYMBOL(tw_parallel_alternating),
      SYMBOL(tw_threads),
      SYMBOL(tw_set_threads),
      SYMBOL(tw_set_own_threads),
      SYMBOL(tw_profile_begin),
      SYMBOL(tw_profile_end),
      SYMBOL(tw_request_tiles),
      SYMBOL(tw_call_arena),
      SYMBOL(tw_call_plan),
      SYMBOL(tw_call_late),
      SYMBOL(tw_call_drop),
      SYMBOL(tw_call_grow),
      SYMBOL(tw_call_foreign),
      SYMBOL(tw_call_fetch),
      SYMBOL(tw_model_call),
      SYMBOL(tw_model_new),
  };
  PyObject *dict = PyDict_New();
  for (size_t i = 0; dict && i < sizeof all / sizeof *all; ++i) {
    PyObject *address = PyLong_FromUnsignedLongLong(all[i].address);
    if (!address || PyDict_SetItemString(dict, all[i].name, address) != 0) Py_CLEAR(dict);
    Py_XDECREF(address);
  }
  return dict;
}

static PyObject *threads(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  return PyLong_FromLong(tw_threads());
}

static PyObject *set_threads(PyObject *module, PyObject *count) {
  (void)module;
  long value = PyLong_AsLong(count);
  if (value == -1 && PyErr_Occurred()) return NULL;
  if (value < 0 || value > INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "a number of threads is 0 (the default) or more");
    return NULL;
  }
  tw_set_threads((int32_t)value);
  Py_RETURN_NONE;
}

static PyObject *shut_down(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  PyThreadState *state = PyEval_SaveThread();
  tw_shutdown();
  PyEval_RestoreThread(state);
  Py_RETURN_NONE;
}

static PyObject *request_tiles(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  return PyBool_FromLong(tw_request_tiles() == TW_OK);
}

/* The profiler of this runtime, or of a library's. */
static PyObject *profile_start(PyObject *module, PyObject *args) {
  (void)module;
  long long capacity;
  unsigned long long address = 0;
  if (!PyArg_ParseTuple(args, "L|K", &capacity, &address)) return NULL;
  const tw_runtime *runtime = runtime_at(address);
  if (!runtime) return NULL;
  int32_t code = runtime->profile_start(capacity);
  if (code != TW_OK) return raise_code(code, runtime->last_error());
  Py_RETURN_NONE;
}

/* Only of this runtime: a library's does not export shares. */
static PyObject *profile_shares(PyObject *module, PyObject *args) {
  (void)module;
  int recorded;
  if (!PyArg_ParseTuple(args, "p", &recorded)) return NULL;
  tw_profile_shares(recorded);
  Py_RETURN_NONE;
}

static PyObject *profile_stop(PyObject *module, PyObject *args) {
  (void)module;
  unsigned long long address = 0;
  if (!PyArg_ParseTuple(args, "|K", &address)) return NULL;
  const tw_runtime *runtime = runtime_at(address);
  if (!runtime) return NULL;
  runtime->profile_stop();
  Py_RETURN_NONE;
}

static PyObject *to_list(const tw_profile_event *events, int64_t count) {
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (int64_t i = 0; list && i < count; ++i) {
    const tw_profile_event *e = &events[i];
    PyObject *item =
        Py_BuildValue("sLLLLL", e->kernel, (long long)e->begin_ns, (long long)e->end_ns,
                      (long long)e->flops, (long long)e->size_bytes, (long long)e->thread);
    if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) != 0) Py_CLEAR(list);
  }
  return list;
}

static PyObject *profile_read(PyObject *module, PyObject *args) {
  (void)module;
  long long count;
  unsigned long long address = 0;
  if (!PyArg_ParseTuple(args, "L|K", &count, &address)) return NULL;
  const tw_runtime *runtime = runtime_at(address);
  if (!runtime) return NULL;
  if (count < 0 || count > PY_SSIZE_T_MAX / (long long)sizeof(tw_profile_event)) {
    PyErr_SetString(PyExc_ValueError, "a limit is 0 or more, and fits memory");
    return NULL;
  }
  tw_profile_event *events = PyMem_Malloc((size_t)count * sizeof *events);
  if (!events) return PyErr_NoMemory();
  int64_t lost, read = runtime->profile_read(events, count, &lost);
  PyObject *list = to_list(events, read);
  PyMem_Free(events);
  return list ? Py_BuildValue("NL", list, (long long)lost) : NULL;
}

static PyMethodDef functions[] = {
    {"call", call_kernel, METH_VARARGS, "call(address, signature, arrays, threads=0)"},
    {"check", check_arrays, METH_VARARGS, "check(signature, arrays): the symbols' values"},
    {"symbols", symbols, METH_NOARGS, "The runtime's functions: name to address."},
    {"plan_arena", plan_arena, METH_VARARGS, "plan_arena(sizes, spans): offsets, total"},
    {"threads", threads, METH_NOARGS, "The default number of threads."},
    {"set_threads", set_threads, METH_O, "Set it; 0 restores the machine's."},
    {"shut_down", shut_down, METH_NOARGS, "End the idle worker threads."},
    {"request_tiles", request_tiles, METH_NOARGS, "Whether the system grants AMX tiles."},
    {"profile_start", profile_start, METH_VARARGS, "profile_start(capacity, runtime=0)"},
    {"profile_shares", profile_shares, METH_VARARGS, "profile_shares(recorded)"},
    {"profile_stop", profile_stop, METH_VARARGS, "profile_stop(runtime=0)"},
    {"profile_read", profile_read, METH_VARARGS,
     "profile_read(limit, runtime=0): the newest events, and how many were lost"},
    {"digest", digest, METH_VARARGS, "digest(areas, turn): of some lines of areas of memory"},
    {"register_dtype", register_dtype, METH_VARARGS, "register_dtype(numpy_dtype, code, bits)"},
    {"accel_open", accel_open, METH_VARARGS, "accel_open(description, backend): a device"},
    {"accel_use", accel_use, METH_VARARGS, "accel_use(device, addresses): kernels of a simulator"},
    {"accel_alloc", accel_alloc, METH_VARARGS, "accel_alloc(device, bytes): number, address"},
    {"accel_free", accel_free, METH_VARARGS, "accel_free(device, buffer)"},
    {"accel_sync", accel_sync, METH_VARARGS, "accel_sync(device, buffer, to_device, at, bytes)"},
    {"accel_submit", accel_submit, METH_VARARGS,
     "accel_submit(device, words, tasks, buffers, writable)"},
    {"accel_wait", accel_wait, METH_VARARGS, "accel_wait(device, timeout_cycles)"},
    {"accel_counters", accel_counters, METH_O, "Counters of the last stream."},
    {"accel_times", accel_times, METH_O, "Begins and ends of its tasks."},
    {"accel_reset", accel_reset, METH_VARARGS, "accel_reset(device, seed)"},
    {"accel_error", accel_error, METH_O, "Code, task and message of the last stream's trap."},
    {"accel_make", accel_make, METH_VARARGS,
     "accel_make(description, words, tasks, rounds, regions): a stream, ordered by tokens"},
    {"set_error_factory", set_error_factory, METH_O, "Set (code, message) -> exception."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "tilewright.runtime._native",
    "Tilewright's C runtime.",
    -1,
    functions,
    NULL,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  if (loan_init() && tensor_init(module) && call_init(module) && model_init(module) &&
      exchange_init(module) && watch_init(module)) {
    return module;
  }
  Py_DECREF(module);
  return NULL;
}
