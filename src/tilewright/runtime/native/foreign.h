/* Callbacks for the parts of a model without native code. Headers of saved models with such parts
 * contain this file, after dlpack_tensor.h.
 */
#ifndef TILEWRIGHT_FOREIGN_H
#define TILEWRIGHT_FOREIGN_H

/* Compute a part without native code from its inputs, which are valid until this returns, and from
 * the sizes that it uses; write the sizes that it defines to `told`. */
typedef int32_t (*tw_run_part)(void *context, int32_t part, const DLTensor *const *inputs,
                               int32_t n_inputs, const int64_t *sizes, int64_t *told);
/* Copy the results of the last part run into tensors, with shapes according to its sizes. */
typedef int32_t (*tw_fetch_part)(void *context, int32_t part, const DLTensor *const *outputs,
                                 int32_t n_outputs);

/* The callbacks for the parts of a model without native code. Both are called on the thread that
 * called the model, `fetch` right after `run` for the same part, and return 0 or an error code,
 * which ends the call: with TW_ERROR_FOREIGN, unless they have recorded an error with that code.
 * Values other than numeric tensors (text, sequences, maps) are i64 scalars: handles defined by the
 * callbacks. */
typedef struct {
  tw_run_part run;
  tw_fetch_part fetch;
  void *context;
} tw_foreign;

#endif
