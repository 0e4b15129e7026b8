/* The DLPack tensor exchange ABI, version 1.1: layouts and numbers only.
 *
 * DLPack is how arrays travel between frameworks without copies. The names and the memory layout
 * here are the standard's, so that any library's DLTensor can be handed to a compiled function.
 */
#ifndef TILEWRIGHT_DLPACK_H
#define TILEWRIGHT_DLPACK_H

#include <stdint.h>

#include "dlpack_tensor.h"

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1

/* What a "dltensor" capsule holds. The consumer calls `deleter` when it is done. */
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

#define DLPACK_FLAG_BITMASK_READ_ONLY (UINT64_C(1) << 0)
#define DLPACK_FLAG_BITMASK_IS_COPIED (UINT64_C(1) << 1)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (UINT64_C(1) << 2)

/* The content of a "dltensor_versioned" capsule. */
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* The content of the attribute `__dlpack_c_exchange_api__` of a library's tensor type, a capsule
 * named "dlpack_exchange_api": functions that live as long as the process. They keep the
 * interpreter's lock; those that return an int set a Python exception and return -1 on failure. */
typedef struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  struct DLPackExchangeAPIHeader *prev_api;
} DLPackExchangeAPIHeader;

typedef struct {
  DLPackExchangeAPIHeader header;
  int (*managed_tensor_allocator)(DLTensor *prototype, DLManagedTensorVersioned **out,
                                  void *error_ctx,
                                  void (*SetError)(void *error_ctx, const char *kind,
                                                   const char *message));
  int (*managed_tensor_from_py_object_no_sync)(void *py_object, DLManagedTensorVersioned **out);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *tensor,
                                             void **out_py_object);       /* takes ownership */
  int (*dltensor_from_py_object_no_sync)(void *py_object, DLTensor *out); /* may be NULL */
  int (*current_work_stream)(DLDeviceType device_type, int32_t device_id, void **out_stream);
} DLPackExchangeAPI;

#endif
