/* The CUDA driver's functions, loaded at the first call; TW_ERROR_NO_DRIVER if there is no
 * driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "cuda_driver.h"
#include "tilewright.h"

enum {
  LEAST_DRIVER = 12000, /* CUDA 12.0: PTX for sm_90a, graphs by capture per thread */
  LEAST_COMPUTE = 80,
  COMPUTE_MAJOR = 75,
  COMPUTE_MINOR = 76,
  LEAST_CONDITIONS = 12040 /* CUDA 12.4: conditional nodes of both kinds */
};

tw_cuda_functions tw_cu;

static const struct {
  const char *name;
  void **place;
  bool is_optional; /* missing in older drivers: conditional nodes */
} symbols[] = {
    {"cuInit", (void **)&tw_cu.init, false},
    {"cuDriverGetVersion", (void **)&tw_cu.driver_version, false},
    {"cuDeviceGet", (void **)&tw_cu.device_get, false},
    {"cuDeviceGetAttribute", (void **)&tw_cu.device_attribute, false},
    {"cuDevicePrimaryCtxRetain", (void **)&tw_cu.context_retain, false},
    {"cuDevicePrimaryCtxRelease_v2", (void **)&tw_cu.context_release, false},
    {"cuCtxSetCurrent", (void **)&tw_cu.context_set, false},
    {"cuCtxGetCurrent", (void **)&tw_cu.context_get, false},
    {"cuGetErrorString", (void **)&tw_cu.error_text, false},
    {"cuMemAlloc_v2", (void **)&tw_cu.memory_alloc, false},
    {"cuMemFree_v2", (void **)&tw_cu.memory_free, false},
    {"cuMemGetInfo_v2", (void **)&tw_cu.memory_info, false},
    {"cuMemcpyHtoDAsync_v2", (void **)&tw_cu.copy_in, false},
    {"cuMemcpyDtoHAsync_v2", (void **)&tw_cu.copy_out, false},
    {"cuMemcpyDtoDAsync_v2", (void **)&tw_cu.copy, false},
    {"cuMemsetD8Async", (void **)&tw_cu.fill, false},
    {"cuPointerGetAttribute", (void **)&tw_cu.pointer_attribute, false},
    {"cuModuleLoadData", (void **)&tw_cu.module_load, false},
    {"cuModuleUnload", (void **)&tw_cu.module_unload, false},
    {"cuModuleGetFunction", (void **)&tw_cu.module_function, false},
    {"cuFuncSetAttribute", (void **)&tw_cu.function_set, false},
    {"cuLaunchKernelEx", (void **)&tw_cu.launch, false},
    {"cuStreamCreate", (void **)&tw_cu.stream_create, false},
    {"cuStreamSynchronize", (void **)&tw_cu.stream_wait, false},
    {"cuStreamDestroy_v2", (void **)&tw_cu.stream_destroy, false},
    {"cuStreamWaitEvent", (void **)&tw_cu.stream_wait_event, false},
    {"cuStreamIsCapturing", (void **)&tw_cu.stream_captures, false},
    {"cuEventCreate", (void **)&tw_cu.event_create, false},
    {"cuEventRecord", (void **)&tw_cu.event_record, false},
    {"cuEventSynchronize", (void **)&tw_cu.event_wait, false},
    {"cuEventDestroy_v2", (void **)&tw_cu.event_destroy, false},
    {"cuStreamBeginCapture_v2", (void **)&tw_cu.capture_begin, false},
    {"cuStreamEndCapture", (void **)&tw_cu.capture_end, false},
    {"cuGraphInstantiateWithFlags", (void **)&tw_cu.graph_make, false},
    {"cuGraphLaunch", (void **)&tw_cu.graph_launch, false},
    {"cuGraphDestroy", (void **)&tw_cu.graph_free, false},
    {"cuGraphExecDestroy", (void **)&tw_cu.graph_exec_free, false},
    {"cuTensorMapEncodeTiled", (void **)&tw_cu.map_encode, false},
    {"cuTensorMapEncodeIm2col", (void **)&tw_cu.window_encode, false},
    {"cuGraphConditionalHandleCreate", (void **)&tw_cu.condition_create, true},
    {"cuStreamGetCaptureInfo_v3", (void **)&tw_cu.capture_info, true},
    {"cuStreamUpdateCaptureDependencies_v2", (void **)&tw_cu.capture_update, true},
    {"cuStreamBeginCaptureToGraph", (void **)&tw_cu.capture_to, true},
    {"cuGraphAddNode_v2", (void **)&tw_cu.node_add, true},
    {"cuGraphExecKernelNodeSetParams_v2", (void **)&tw_cu.node_change, true},
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
void *tw_cuda_context;
static int driver_version, device;

/* Sticky errors, after which every call in the process fails: of memory, links, kernels,
   time-outs. */
static const result losses[] = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
static _Atomic result lost; /* the first of them, if any */

static const char *words_of(result code) {
  const char *text = NULL;
  if (tw_cu.error_text) tw_cu.error_text(code, &text);
  return text ? text : "unknown";
}

int32_t tw_cuda_refused(const char *what, result code) {
  for (size_t i = 0; i < sizeof losses / sizeof *losses; ++i) {
    if (code == losses[i]) lost = code;
  }
  return tw_errorf(TW_ERROR_GPU, "%s failed: %s (%d)", what, words_of(code), code);
}

int32_t tw_cuda_check(void) {
  if (!lost) return TW_OK;
  return tw_errorf(TW_ERROR_GPU_LOST, "the GPU's context is lost: %s (%d)", words_of(lost), lost);
}

static int32_t find_symbols(void *library) {
  size_t count = sizeof symbols / sizeof *symbols;
  for (size_t i = 0; i < count; ++i) {
    *symbols[i].place = dlsym(library, symbols[i].name);
    if (*symbols[i].place || symbols[i].is_optional) continue;
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver is too old: it has no %s",
                     symbols[i].name);
  }
  return TW_OK;
}

static int32_t check_gpu(void) {
  result code = tw_cu.init(0);
  if (code != 0) {
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver cannot be used: %s", words_of(code));
  }
  int major = 0, minor = 0;
  TRY("cuDriverGetVersion", tw_cu.driver_version(&driver_version));
  if (driver_version < LEAST_DRIVER) {
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver is of version %d.%d, %d.%d is needed",
                     driver_version / 1000, driver_version % 1000 / 10, LEAST_DRIVER / 1000,
                     LEAST_DRIVER % 1000 / 10);
  }
  TRY("cuDeviceGet", tw_cu.device_get(&device, TW_CUDA_ORDINAL));
  TRY("cuDeviceGetAttribute", tw_cu.device_attribute(&major, COMPUTE_MAJOR, device));
  TRY("cuDeviceGetAttribute", tw_cu.device_attribute(&minor, COMPUTE_MINOR, device));
  if (10 * major + minor < LEAST_COMPUTE) {
    return tw_errorf(TW_ERROR_NO_DRIVER, "the GPU is sm_%d%d, sm_%d or later is needed", major,
                     minor, LEAST_COMPUTE);
  }
  return TW_OK;
}

int32_t tw_cuda_open(void) {
  int32_t code = TW_OK;
  pthread_mutex_lock(&opening);
  if (!tw_cuda_context) {
    const char *name = getenv("TILEWRIGHT_CUDA_DRIVER");
    void *library = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      code = tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver cannot be opened: %s", dlerror());
    } else {
      code = find_symbols(library);
      if (code == TW_OK) code = check_gpu();
      if (code == TW_OK) {
        result retained = tw_cu.context_retain(&tw_cuda_context, device);
        if (retained != 0) code = tw_cuda_refused("cuDevicePrimaryCtxRetain", retained);
      }
      if (code != TW_OK) dlclose(library);
    }
  }
  pthread_mutex_unlock(&opening);
  return code;
}

void tw_cuda_close(void) {
  tw_cu.context_release(device);
  tw_cuda_context = NULL;
}

bool tw_cuda_has_conditions(void) {
  return driver_version >= LEAST_CONDITIONS && tw_cu.condition_create && tw_cu.capture_info &&
         tw_cu.capture_update && tw_cu.capture_to && tw_cu.node_add;
}

bool tw_cuda_has_changes(void) {
  return driver_version >= LEAST_CONDITIONS && tw_cu.capture_info && tw_cu.node_change;
}
