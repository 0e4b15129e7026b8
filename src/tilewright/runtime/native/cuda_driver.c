/* The CUDA driver's functions, found in its library at the first call; a machine without one gets
 * TW_ERROR_NO_DRIVER. */
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
} symbols[] = {
    {"cuInit", (void **)&tw_cu.init},
    {"cuDriverGetVersion", (void **)&tw_cu.driver_version},
    {"cuDeviceGet", (void **)&tw_cu.device_get},
    {"cuDeviceGetAttribute", (void **)&tw_cu.device_attribute},
    {"cuDevicePrimaryCtxRetain", (void **)&tw_cu.context_retain},
    {"cuCtxSetCurrent", (void **)&tw_cu.context_set},
    {"cuCtxGetCurrent", (void **)&tw_cu.context_get},
    {"cuGetErrorString", (void **)&tw_cu.error_text},
    {"cuMemAlloc_v2", (void **)&tw_cu.memory_alloc},
    {"cuMemFree_v2", (void **)&tw_cu.memory_free},
    {"cuMemGetInfo_v2", (void **)&tw_cu.memory_info},
    {"cuMemcpyHtoDAsync_v2", (void **)&tw_cu.copy_in},
    {"cuMemcpyDtoHAsync_v2", (void **)&tw_cu.copy_out},
    {"cuMemcpyDtoDAsync_v2", (void **)&tw_cu.copy},
    {"cuMemsetD8Async", (void **)&tw_cu.fill},
    {"cuPointerGetAttribute", (void **)&tw_cu.pointer_attribute},
    {"cuModuleLoadData", (void **)&tw_cu.module_load},
    {"cuModuleUnload", (void **)&tw_cu.module_unload},
    {"cuModuleGetFunction", (void **)&tw_cu.module_function},
    {"cuFuncSetAttribute", (void **)&tw_cu.function_set},
    {"cuLaunchKernelEx", (void **)&tw_cu.launch},
    {"cuStreamCreate", (void **)&tw_cu.stream_create},
    {"cuStreamSynchronize", (void **)&tw_cu.stream_wait},
    {"cuStreamDestroy_v2", (void **)&tw_cu.stream_destroy},
    {"cuStreamWaitEvent", (void **)&tw_cu.stream_wait_event},
    {"cuEventCreate", (void **)&tw_cu.event_create},
    {"cuEventRecord", (void **)&tw_cu.event_record},
    {"cuEventDestroy_v2", (void **)&tw_cu.event_destroy},
    {"cuStreamBeginCapture_v2", (void **)&tw_cu.capture_begin},
    {"cuStreamEndCapture", (void **)&tw_cu.capture_end},
    {"cuGraphInstantiateWithFlags", (void **)&tw_cu.graph_make},
    {"cuGraphLaunch", (void **)&tw_cu.graph_launch},
    {"cuGraphDestroy", (void **)&tw_cu.graph_free},
    {"cuGraphExecDestroy", (void **)&tw_cu.graph_exec_free},
    {"cuTensorMapEncodeTiled", (void **)&tw_cu.map_encode},
    {"cuTensorMapEncodeIm2col", (void **)&tw_cu.window_encode},
    {"cuGraphConditionalHandleCreate", (void **)&tw_cu.condition_create},
    {"cuStreamGetCaptureInfo_v3", (void **)&tw_cu.capture_info},
    {"cuStreamUpdateCaptureDependencies_v2", (void **)&tw_cu.capture_update},
    {"cuStreamBeginCaptureToGraph", (void **)&tw_cu.capture_to},
    {"cuGraphAddNode_v2", (void **)&tw_cu.node_add},
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
void *tw_cuda_context;
static int driver_version;

int32_t tw_cuda_refused(const char *what, result code) {
  const char *text = NULL;
  if (tw_cu.error_text) tw_cu.error_text(code, &text);
  return tw_errorf(TW_ERROR_GPU, "%s failed: %s (%d)", what, text ? text : "unknown", code);
}

enum { OPTIONAL = 5 }; /* of the symbols, the last */

static int32_t find_symbols(void *library) {
  size_t count = sizeof symbols / sizeof *symbols;
  for (size_t i = 0; i < count; ++i) {
    *symbols[i].place = dlsym(library, symbols[i].name);
    if (*symbols[i].place || i >= count - OPTIONAL) continue;
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver is too old: it has no %s",
                     symbols[i].name);
  }
  return TW_OK;
}

static int32_t check_gpu(int *device) {
  result code = tw_cu.init(0);
  if (code != 0) {
    const char *text = NULL;
    tw_cu.error_text(code, &text);
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver cannot be used: %s",
                     text ? text : "unknown");
  }
  int major = 0, minor = 0;
  TRY("cuDriverGetVersion", tw_cu.driver_version(&driver_version));
  if (driver_version < LEAST_DRIVER) {
    return tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver is of version %d.%d, %d.%d is needed",
                     driver_version / 1000, driver_version % 1000 / 10, LEAST_DRIVER / 1000,
                     LEAST_DRIVER % 1000 / 10);
  }
  TRY("cuDeviceGet", tw_cu.device_get(device, 0));
  TRY("cuDeviceGetAttribute", tw_cu.device_attribute(&major, COMPUTE_MAJOR, *device));
  TRY("cuDeviceGetAttribute", tw_cu.device_attribute(&minor, COMPUTE_MINOR, *device));
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
    int device = 0;
    if (!library) {
      code = tw_errorf(TW_ERROR_NO_DRIVER, "the CUDA driver cannot be opened: %s", dlerror());
    } else {
      code = find_symbols(library);
      if (code == TW_OK) code = check_gpu(&device);
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

bool tw_cuda_has_conditions(void) {
  return driver_version >= LEAST_CONDITIONS && tw_cu.condition_create && tw_cu.capture_info &&
         tw_cu.capture_update && tw_cu.capture_to && tw_cu.node_add;
}
