/* The CUDA driver, loaded at run time: no CUDA files are needed to build this. */
#ifndef TILEWRIGHT_CUDA_DRIVER_H
#define TILEWRIGHT_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The part of the driver's interface in use: handles are pointers, addresses 64 bits. */
typedef int result;
typedef uint64_t address;
typedef struct {
  _Alignas(64) uint64_t words[16];
} tensor_map;
typedef struct {
  int id;
  char padding[4];
  union {
    int flag;
    char bytes[64];
  } value;
} launch_attribute;
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  launch_attribute *attributes;
  unsigned n_attributes;
} launch_config;

/* A kernel's node. */
typedef struct {
  void *function;
  unsigned grid[3], block[3], shared_bytes;
  void **arguments, **extra;
  void *kernel, *context;
} kernel_params;

/* A conditional node: bodies that run depending on its handle. */
typedef struct {
  int type, reserved[3];
  union {
    struct {
      uint64_t handle;
      int kind;
      unsigned size;
      void **graphs; /* of its bodies, made by the driver */
      void *context;
    } condition;
    int64_t words[29];
  };
  int64_t last;
} node_params;

typedef struct {
  result (*init)(unsigned);
  result (*driver_version)(int *);
  result (*device_get)(int *, int);
  result (*device_attribute)(int *, int, int);
  result (*context_retain)(void **, int);
  result (*context_release)(int);
  result (*context_set)(void *);
  result (*context_get)(void **);
  result (*error_text)(result, const char **);
  result (*memory_alloc)(address *, size_t);
  result (*memory_free)(address);
  result (*memory_info)(size_t *, size_t *);
  result (*copy_in)(address, const void *, size_t, void *);
  result (*copy_out)(void *, address, size_t, void *);
  result (*copy)(address, address, size_t, void *);
  result (*fill)(address, unsigned char, size_t, void *);
  result (*pointer_attribute)(void *, int, address);
  result (*module_load)(void **, const void *);
  result (*module_unload)(void *);
  result (*module_function)(void **, void *, const char *);
  result (*function_set)(void *, int, int);
  result (*launch)(const launch_config *, void *, void **, void **);
  result (*stream_create)(void **, unsigned);
  result (*stream_wait)(void *);
  result (*stream_destroy)(void *);
  result (*stream_wait_event)(void *, void *, unsigned);
  result (*stream_captures)(void *, int *);
  result (*event_create)(void **, unsigned);
  result (*event_record)(void *, void *);
  result (*event_wait)(void *);
  result (*event_destroy)(void *);
  result (*capture_begin)(void *, int);
  result (*capture_end)(void *, void **);
  result (*graph_make)(void **, void *, unsigned long long);
  result (*graph_launch)(void *, void *);
  result (*graph_free)(void *);
  result (*graph_exec_free)(void *);
  result (*map_encode)(tensor_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                       const uint32_t *, const uint32_t *, int, int, int, int);
  result (*window_encode)(tensor_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                          const int *, const int *, uint32_t, uint32_t, const uint32_t *, int, int,
                          int, int);
  /* The following are NULL if the driver has no conditional nodes. */
  result (*condition_create)(uint64_t *, void *, void *, unsigned, unsigned);
  result (*capture_info)(void *, int *, uint64_t *, void **, void *const **, const void **,
                         size_t *);
  result (*capture_update)(void *, void **, const void *, size_t, unsigned);
  result (*capture_to)(void *, void *, void *const *, const void *, size_t, int);
  result (*node_add)(void **, void *, void *const *, const void *, size_t, node_params *);
  result (*node_change)(void *, void *, const kernel_params *);
} tw_cuda_functions;

extern tw_cuda_functions tw_cu;
extern void *tw_cuda_context; /* of the GPU of this ordinal */
enum { TW_CUDA_ORDINAL = 0 };

/* Open the driver, once per process; after a failure the next call tries again. */
int32_t tw_cuda_open(void);

/* Release the context, when it is no longer used. */
void tw_cuda_close(void);

/* Whether the driver has conditional nodes (CUDA 12.4). */
bool tw_cuda_has_conditions(void);

/* Whether graphs tell their nodes, and these can be changed (CUDA 12.4). */
bool tw_cuda_has_changes(void);

/* Record an error of the driver, with its own description. */
int32_t tw_cuda_refused(const char *what, result code);

/* Check that the context is usable: it is not after a kernel's fault. */
int32_t tw_cuda_check(void);

#define TRY(what, call)                                    \
  do {                                                     \
    result tried = (call);                                 \
    if (tried != 0) return tw_cuda_refused((what), tried); \
  } while (0)

#endif
