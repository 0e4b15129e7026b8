/* Digest of some cache lines of many memory areas, to detect changes of weights. */
#include <string.h>

#include "python_native.h"

/* Lines are too far apart for the hardware prefetcher. */
enum { LINE_BYTES = 64, WORDS = LINE_BYTES / 8, PREFETCH_DISTANCE = 16 };

/* Odd, so that multiplication is a bijection. */
static const uint64_t FACTOR = 0x9E3779B97F4A7C15u;

/* One area: its lines at `turn`, and at every `step_bytes` from there. Consecutive turns cover
 * every byte after step_bytes / LINE_BYTES of them. */
typedef struct {
  uint64_t address, size_bytes, step_bytes;
} area;

static void fold_line(uint64_t sums[WORDS], const unsigned char *at, uint64_t size) {
  uint64_t words[WORDS] = {0};
  memcpy(words, at, size < LINE_BYTES ? size : LINE_BYTES);
  for (int i = 0; i < WORDS; ++i) sums[i] = (sums[i] + words[i]) * FACTOR;
}

static uint64_t folded(const area *areas, uint64_t count, uint64_t turn) {
  uint64_t sums[WORDS] = {0}, whole = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const unsigned char *memory = (const unsigned char *)(uintptr_t)areas[i].address;
    uint64_t at = turn * LINE_BYTES % areas[i].step_bytes;
    for (; at < areas[i].size_bytes; at += areas[i].step_bytes) {
      __builtin_prefetch(memory + at + PREFETCH_DISTANCE * areas[i].step_bytes);
      fold_line(sums, memory + at, areas[i].size_bytes - at);
    }
  }
  for (int i = 0; i < WORDS; ++i) {
    whole = (whole ^ (sums[i] >> 29) ^ sums[i]) * FACTOR;
  }
  return whole;
}

/* digest(areas, turn): areas are triples of 64-bit numbers, as above. */
PyObject *digest(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer given;
  unsigned long long turn;
  if (!PyArg_ParseTuple(args, "y*K", &given, &turn)) return NULL;
  const area *areas = given.buf;
  uint64_t count = (uint64_t)given.len / sizeof(area);
  bool valid = (uint64_t)given.len % sizeof(area) == 0;
  for (uint64_t i = 0; valid && i < count; ++i) {
    valid = areas[i].step_bytes >= LINE_BYTES && areas[i].step_bytes % LINE_BYTES == 0;
  }
  uint64_t found = 0;
  if (valid) {
    PyThreadState *state = PyEval_SaveThread();
    found = folded(areas, count, turn);
    PyEval_RestoreThread(state);
  }
  PyBuffer_Release(&given);
  if (!valid) {
    PyErr_SetString(PyExc_ValueError, "an area has a step that is no multiple of a line");
    return NULL;
  }
  return PyLong_FromUnsignedLongLong(found);
}
