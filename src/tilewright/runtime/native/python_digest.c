/* A digest of some lines of many areas of memory: whether weights are still what they were. */
#include <string.h>

#include "python_native.h"

/* Lines lie too far apart for hardware to fetch them ahead. */
enum { LINE_BYTES = 64, WORDS = LINE_BYTES / 8, PREFETCH_DISTANCE = 16 };

/* An odd number: multiplying by it loses nothing of what was added before. */
static const uint64_t FACTOR = 0x9E3779B97F4A7C15u;

/* One area: its lines at `turn`, and at every `step_bytes` behind. Whoever comes by with one turn
 * after the other has seen every byte after step_bytes / LINE_BYTES of them. */
typedef struct {
  uint64_t address, size_bytes, step_bytes;
} area;

static void fold_line(uint64_t sums[WORDS], const unsigned char *at, uint64_t size) {
  uint64_t words[WORDS] = {0};
  memcpy(words, at, size < LINE_BYTES ? size : LINE_BYTES);
  for (int i = 0; i < WORDS; ++i) sums[i] = (sums[i] + words[i]) * FACTOR;
}

/* Looking at pages that are in no TLB takes far longer than adding them up: threads share it. There
 * are as many shares for any number of threads, which must not change the digest. */
enum { SHARES = 16, LINES_WORTH_THREADS = 1024 };

typedef struct {
  const area *areas;
  uint64_t count, turn, lines; /* areas; lines of all of them */
  uint64_t found[SHARES];
} look;

static uint64_t first_byte(const area *each, uint64_t turn) {
  return turn * LINE_BYTES % each->step_bytes;
}

static uint64_t lines_of(const area *each, uint64_t turn) {
  uint64_t first = first_byte(each, turn);
  return first < each->size_bytes ? (each->size_bytes - first - 1) / each->step_bytes + 1 : 0;
}

/* The lines [begin, end) of all areas together. */
static uint64_t folded(const look *all, uint64_t begin, uint64_t end) {
  uint64_t sums[WORDS] = {0}, whole = 0, before = 0; /* lines of areas before this one */
  for (uint64_t i = 0; i < all->count && before < end; ++i) {
    const area *each = &all->areas[i];
    uint64_t lines = lines_of(each, all->turn), step = each->step_bytes;
    uint64_t from = begin > before ? begin - before : 0;
    uint64_t to = end - before < lines ? end - before : lines;
    const unsigned char *memory = (const unsigned char *)(uintptr_t)each->address;
    for (uint64_t line = from; line < to; ++line) {
      uint64_t at = first_byte(each, all->turn) + line * step;
      __builtin_prefetch(memory + at + PREFETCH_DISTANCE * step);
      fold_line(sums, memory + at, each->size_bytes - at);
    }
    before += lines;
  }
  for (int i = 0; i < WORDS; ++i) {
    whole = (whole ^ (sums[i] >> 29) ^ sums[i]) * FACTOR;
  }
  return whole;
}

static int32_t fold_shares(void *env, int64_t begin, int64_t end) {
  look *all = env;
  for (int64_t share = begin; share < end; ++share) {
    uint64_t at = (uint64_t)share;
    all->found[share] = folded(all, all->lines * at / SHARES, all->lines * (at + 1) / SHARES);
  }
  return 0;
}

static uint64_t looked_at(const area *areas, uint64_t count, uint64_t turn, int32_t threads) {
  look all = {areas, count, turn, 0, {0}};
  uint64_t whole = 0;
  for (uint64_t i = 0; i < count; ++i) all.lines += lines_of(&areas[i], turn);
  tw_parallel_for(fold_shares, &all, SHARES, all.lines < LINES_WORTH_THREADS ? 1 : threads);
  for (int i = 0; i < SHARES; ++i) whole = (whole ^ all.found[i]) * FACTOR;
  return whole;
}

/* digest(areas, turn, threads): areas are triples of 64-bit numbers, as above. */
PyObject *digest(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer given;
  unsigned long long turn;
  int threads = 1;
  if (!PyArg_ParseTuple(args, "y*K|i", &given, &turn, &threads)) return NULL;
  const area *areas = given.buf;
  uint64_t count = (uint64_t)given.len / sizeof(area);
  bool valid = (uint64_t)given.len % sizeof(area) == 0;
  for (uint64_t i = 0; valid && i < count; ++i) {
    valid = areas[i].step_bytes >= LINE_BYTES && areas[i].step_bytes % LINE_BYTES == 0;
  }
  uint64_t found = 0;
  if (valid) {
    PyThreadState *state = PyEval_SaveThread();
    found = looked_at(areas, count, turn, threads);
    PyEval_RestoreThread(state);
  }
  PyBuffer_Release(&given);
  if (!valid) {
    PyErr_SetString(PyExc_ValueError, "an area has a step that is no multiple of a line");
    return NULL;
  }
  return PyLong_FromUnsignedLongLong(found);
}
