/* Checks of a caller's tensors before native code uses them. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tilewright.h"

const char *tw_dtype_name(DLDataType dtype, char text[TW_DTYPE_NAME_SIZE]) {
  static const char *const PREFIXES[] = {
      [kDLInt] = "i",     [kDLUInt] = "u",    [kDLFloat] = "f",
      [kDLBfloat] = "bf", [kDLComplex] = "c", [kDLOpaqueHandle] = "handle",
  };
  static const char *const NAMES[] = {
      [kDLBool] = "bool",
      [kDLFloat8_e3m4] = "f8e3m4",
      [kDLFloat8_e4m3] = "f8e4m3ieee",
      [kDLFloat8_e4m3b11fnuz] = "f8e4m3b11fnuz",
      [kDLFloat8_e4m3fn] = "f8e4m3",
      [kDLFloat8_e4m3fnuz] = "f8e4m3fnuz",
      [kDLFloat8_e5m2] = "f8e5m2",
      [kDLFloat8_e5m2fnuz] = "f8e5m2fnuz",
      [kDLFloat8_e8m0fnu] = "f8e8m0",
      [kDLFloat6_e2m3fn] = "f6e2m3",
      [kDLFloat6_e3m2fn] = "f6e3m2",
      [kDLFloat4_e2m1fn] = "f4e2m1",
  };
  int written;
  if (dtype.code <= kDLComplex) {
    written = snprintf(text, TW_DTYPE_NAME_SIZE, "%s%d", PREFIXES[dtype.code], dtype.bits);
  } else if (dtype.code <= kDLFloat4_e2m1fn) {
    written = snprintf(text, TW_DTYPE_NAME_SIZE, "%s", NAMES[dtype.code]);
  } else {
    written = snprintf(text, TW_DTYPE_NAME_SIZE, "dtype(%d, %d)", dtype.code, dtype.bits);
  }
  if (dtype.lanes != 1) {
    snprintf(text + written, (size_t)(TW_DTYPE_NAME_SIZE - written), "x%d", dtype.lanes);
  }
  return text;
}

/* Storage of one element. Four-bit integers take a byte each. */
static int64_t element_bytes(DLDataType dtype) {
  return (int64_t)((dtype.bits + 7) / 8) * dtype.lanes;
}

static const char *address(const DLTensor *tensor) {
  return (const char *)tensor->data + tensor->byte_offset;
}

/* Prepared once per argument, for the checks below. */
typedef struct {
  const tw_signature *signature;
  const tw_param *param;
  const DLTensor *tensor;
  bool empty; /* some extent is 0: its memory is not accessed */
} argument;

#define REFUSE(code, format, ...) \
  tw_errorf(code, "%s: argument %s: " format, arg->signature->name, arg->param->name, __VA_ARGS__)

static int32_t check_dtype(const argument *arg) {
  DLDataType got = arg->tensor->dtype, want = arg->param->dtype;
  if (got.code == want.code && got.bits == want.bits && got.lanes == want.lanes) return TW_OK;
  char got_name[TW_DTYPE_NAME_SIZE], want_name[TW_DTYPE_NAME_SIZE];
  return REFUSE(TW_ERROR_DTYPE, "the dtype is %s, expected %s", tw_dtype_name(got, got_name),
                tw_dtype_name(want, want_name));
}

static int32_t check_rank(const argument *arg) {
  if (arg->param->flags & TW_PARAM_ANY_RANK) return TW_OK;
  if (arg->tensor->ndim == arg->param->ndim) return TW_OK;
  return REFUSE(TW_ERROR_RANK, "it has %d dimensions, expected %d", arg->tensor->ndim,
                arg->param->ndim);
}

static int32_t check_device(const argument *arg) {
  int32_t got = arg->tensor->device.device_type, want = arg->param->device_type;
  /* Pinned and managed memory is host memory as well. */
  bool host = got == kDLCUDAHost || got == kDLROCMHost || got == kDLCUDAManaged;
  if (got == want || (want == kDLCPU && host)) return TW_OK;
  if (want == TW_DEVICE_ANY && (got == kDLCPU || got == kDLCUDA || host)) return TW_OK;
  return REFUSE(TW_ERROR_DEVICE, "it is on a device of DLPack type %d, expected type %d%s", got,
                want, want == kDLCPU ? " (the CPU)" : "");
}

static int32_t check_extents(argument *arg, int64_t *symbols) {
  int64_t elements = 1;
  for (int32_t axis = 0; axis < arg->tensor->ndim; ++axis) {
    bool is_open = arg->param->flags & TW_PARAM_ANY_RANK;
    int64_t got = arg->tensor->shape[axis], want = is_open ? TW_DIM_ANY : arg->param->shape[axis];
    if (got < 0) {
      return REFUSE(TW_ERROR_SHAPE, "dimension %d is negative: %" PRId64, axis, got);
    }
    if (want <= TW_DIM_SYMBOL(0)) {
      int64_t k = -2 - want;
      if (symbols[k] < 0) symbols[k] = got;
      if (symbols[k] != got) {
        return REFUSE(TW_ERROR_SHAPE, "dimension %d is %" PRId64 ", expected %s = %" PRId64, axis,
                      got, arg->signature->symbols[k], symbols[k]);
      }
    } else if (want != TW_DIM_ANY && want != got) {
      return REFUSE(TW_ERROR_SHAPE, "dimension %d is %" PRId64 ", expected %" PRId64, axis, got,
                    want);
    }
    arg->empty = arg->empty || got == 0;
    if (__builtin_mul_overflow(elements, got > 0 ? got : 1, &elements)) {
      return REFUSE(TW_ERROR_SHAPE, "more elements than memory: dimension %d is %" PRId64, axis,
                    got);
    }
  }
  int64_t size_bytes;
  if (__builtin_mul_overflow(elements, element_bytes(arg->param->dtype), &size_bytes)) {
    return REFUSE(TW_ERROR_SHAPE, "more bytes than memory: %" PRId64 " elements", elements);
  }
  return TW_OK;
}

/* Larger strides, in elements, are certainly mistakes; smaller ones cannot overflow. */
#define MAX_REACH (INT64_C(1) << 47)

static int32_t check_strides(const argument *arg) {
  const DLTensor *tensor = arg->tensor;
  if (arg->empty || !tensor->strides) return TW_OK;
  int64_t compact = 1, reach = 0, step;
  for (int32_t axis = tensor->ndim - 1; axis >= 0; --axis) {
    int64_t extent = tensor->shape[axis], stride = tensor->strides[axis];
    if (extent == 1) continue; /* never strided over */
    if (!(arg->param->flags & TW_PARAM_STRIDED) && stride != compact) {
      return REFUSE(TW_ERROR_STRIDES,
                    "it is not contiguous: dimension %d has stride %" PRId64 ", expected %" PRId64,
                    axis, stride, compact);
    }
    if (arg->param->flags & TW_PARAM_WRITABLE && stride == 0) {
      return REFUSE(TW_ERROR_STRIDES, "it is an output, yet dimension %d has stride 0", axis);
    }
    if (__builtin_mul_overflow(extent - 1, stride, &step) || step < -MAX_REACH ||
        step > MAX_REACH || (reach += step < 0 ? -step : step) > MAX_REACH) {
      return REFUSE(TW_ERROR_STRIDES, "dimension %d steps out of memory: stride %" PRId64, axis,
                    stride);
    }
    compact *= extent;
  }
  return TW_OK;
}

static int32_t check_memory(const argument *arg) {
  if (arg->empty) return TW_OK;
  if (!arg->tensor->data) return REFUSE(TW_ERROR_NO_ARRAY, "%s", "it has no data");
  /* A vector element is only aligned like its lanes. */
  int32_t align = arg->param->align ? arg->param->align : (arg->param->dtype.bits + 7) / 8;
  if ((uintptr_t)address(arg->tensor) % (uintptr_t)align == 0) return TW_OK;
  return REFUSE(TW_ERROR_ALIGNMENT, "its address %p is not a multiple of %d bytes",
                (const void *)address(arg->tensor), align);
}

/* The bytes [low, high) that a tensor may touch. */
typedef struct {
  uintptr_t low, high;
} span;

static span span_of(const DLTensor *tensor) {
  int64_t size = element_bytes(tensor->dtype), low = 0, high = 0, compact = 1;
  for (int32_t axis = tensor->ndim - 1; axis >= 0; --axis) {
    int64_t extent = tensor->shape[axis];
    if (extent == 0) return (span){0, 0};
    int64_t reach = (extent - 1) * (tensor->strides ? tensor->strides[axis] : compact);
    if (reach < 0) low += reach;
    if (reach > 0) high += reach;
    compact *= extent;
  }
  uintptr_t base = (uintptr_t)address(tensor);
  return (span){base + (uintptr_t)(low * size), base + (uintptr_t)((high + 1) * size)};
}

static int32_t check_overlap(const tw_signature *signature, const DLTensor *const *args) {
  for (int32_t out = 0; out < signature->n_params; ++out) {
    int32_t flags = signature->params[out].flags;
    if (!(flags & TW_PARAM_WRITABLE) || flags & TW_PARAM_ALIAS) continue;
    span written = span_of(args[out]);
    for (int32_t other = 0; other < signature->n_params; ++other) {
      if (other == out || args[other]->device.device_type != args[out]->device.device_type) {
        continue;
      }
      span touched = span_of(args[other]);
      if (written.low < touched.high && touched.low < written.high) {
        return tw_errorf(TW_ERROR_OVERLAP, "%s: argument %s: it shares memory with argument %s",
                         signature->name, signature->params[out].name,
                         signature->params[other].name);
      }
    }
  }
  return TW_OK;
}

int32_t tw_check_args(const tw_signature *signature, const DLTensor *const *args, int32_t n_args,
                      int64_t *symbols) {
  if (n_args != signature->n_params) {
    return tw_errorf(TW_ERROR_ARGUMENTS, "%s: it takes %d arguments, got %d", signature->name,
                     signature->n_params, n_args);
  }
  for (int32_t k = 0; k < signature->n_symbols; ++k) symbols[k] = -1;
  for (int32_t i = 0; i < n_args; ++i) {
    argument arg = {signature, &signature->params[i], args[i], false};
    if (!args[i]) {
      return tw_errorf(TW_ERROR_NO_ARRAY, "%s: argument %s: it is NULL", signature->name,
                       arg.param->name);
    }
    int32_t code;
    if ((code = check_dtype(&arg))) return code;
    if ((code = check_rank(&arg))) return code;
    if ((code = check_device(&arg))) return code;
    if ((code = check_extents(&arg, symbols))) return code;
    if ((code = check_strides(&arg))) return code;
    if ((code = check_memory(&arg))) return code;
  }
  return check_overlap(signature, args);
}
