/* Parts of a model without native code: the host program calls the registered callbacks. */
#include "tilewright.h"

/* Tensors over memory of the host program, in one allocation: the pointers, then the tensors.
 */
static const DLTensor **tensors_of(const tw_signature *signature, void *const *data,
                                   const int64_t *dims) {
  size_t count = (size_t)signature->n_params;
  size_t head = (count * sizeof(DLTensor *) + TW_ALIGN - 1) / TW_ALIGN * TW_ALIGN;
  char *memory = tw_workspace_alloc((int64_t)(head + count * sizeof(DLTensor)));
  if (!memory) return NULL;
  const DLTensor **pointers = (const DLTensor **)(void *)memory;
  DLTensor *tensors = (DLTensor *)(void *)(memory + head);
  for (size_t i = 0; i < count; ++i) {
    const tw_param *param = &signature->params[i];
    tensors[i] = (DLTensor){.data = data[i],
                            .device = {param->device_type, 0},
                            .ndim = param->ndim,
                            .dtype = param->dtype,
                            .shape = (int64_t *)dims};
    pointers[i] = &tensors[i];
    dims += param->ndim;
  }
  return pointers;
}

static int32_t failed(const tw_signature *signature, int32_t code) {
  if (code == tw_last_code()) return code; /* the callback's own message is more precise */
  return tw_errorf(TW_ERROR_FOREIGN, "%s has no native code, and its callback failed with code %d",
                   signature->name, code);
}

int32_t tw_call_foreign(tw_call *call, int32_t part, const tw_signature *signature,
                        void *const *data, const int64_t *dims, const int64_t *sizes,
                        int64_t *told) {
  const tw_foreign *foreign = &call->foreign;
  if (!foreign->run || !foreign->fetch) {
    return tw_errorf(TW_ERROR_FOREIGN,
                     "%s has no native code, and no callback is registered to run it",
                     signature->name);
  }
  const DLTensor **inputs = tensors_of(signature, data, dims);
  if (!inputs) return tw_last_code();
  tw_error(TW_OK, "");
  tw_set_float_mode(call->float_mode); /* the callback may have changed the mode */
  int32_t code = foreign->run(foreign->context, part, inputs, signature->n_params, sizes, told);
  tw_flush_subnormals();
  tw_workspace_free(inputs);
  return code == TW_OK ? TW_OK : failed(signature, code);
}

int32_t tw_call_fetch(tw_call *call, int32_t part, const tw_signature *signature, void *const *data,
                      const int64_t *dims) {
  const tw_foreign *foreign = &call->foreign;
  const DLTensor **outputs = tensors_of(signature, data, dims);
  if (!outputs) return tw_last_code();
  tw_error(TW_OK, "");
  tw_set_float_mode(call->float_mode);
  int32_t code = foreign->fetch(foreign->context, part, outputs, signature->n_params);
  tw_flush_subnormals();
  tw_workspace_free(outputs);
  return code == TW_OK ? TW_OK : failed(signature, code);
}
