/* The error state: one code and one message per thread. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "tilewright.h"

static _Thread_local struct {
  int32_t code;
  char message[512];
} last;

int32_t tw_errorf(int32_t code, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last.message, sizeof last.message, format, values);
  va_end(values);
  last.code = code;
  return code;
}

int32_t tw_error(int32_t code, const char *message) { return tw_errorf(code, "%s", message); }

int32_t tw_error_dim(const char *function, const char *name, int32_t axis, int64_t got,
                     int64_t want) {
  return tw_errorf(TW_ERROR_SHAPE,
                   "%s: argument %s: dimension %" PRId32 " is %" PRId64 ", expected %" PRId64,
                   function, name, axis, got, want);
}

const char *tw_last_error(void) { return last.message; }

int32_t tw_last_code(void) { return last.code; }
