/* Models in separate libraries: entry point for C programs, and this runtime for Python. */
#include "tilewright.h"

static tw_model *instance_of(const tw_entry *entry) {
  void *found = __atomic_load_n(entry->instance, __ATOMIC_ACQUIRE);
  if (found) return found;
  tw_model *made = tw_model_new(entry->constants);
  if (!made) return NULL;
  if (entry->foreign) tw_model_set_foreign(made, entry->foreign);
  if (__atomic_compare_exchange_n(entry->instance, &found, made, 0, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE)) {
    return made;
  }
  tw_model_free(made); /* another thread has created one */
  return found;
}

enum { FEW_SYMBOLS = 64 };

int32_t tw_run_model(const tw_entry *entry, const DLTensor *const *args, int32_t n_args) {
  const tw_signature *signature = entry->signature;
  int64_t symbols[FEW_SYMBOLS];
  if (signature->n_symbols > FEW_SYMBOLS) {
    return tw_errorf(TW_ERROR_INTERNAL, "%s: it has %d sizes, at most %d are possible",
                     signature->name, signature->n_symbols, FEW_SYMBOLS);
  }
  int32_t code = tw_check_args(signature, args, n_args, symbols);
  if (code != TW_OK) return code;
  tw_model *model = instance_of(entry);
  if (!model) return TW_ERROR_NO_MEMORY;
  return tw_model_call(model, entry->main, signature->name, args, n_args, entry->n_inputs,
                       signature->n_params - entry->n_inputs);
}

int32_t tw_set_foreign(const tw_entry *entry, const tw_foreign *foreign) {
  tw_model *model = instance_of(entry);
  if (!model) return TW_ERROR_NO_MEMORY;
  tw_model_set_foreign(model, foreign);
  return TW_OK;
}

const tw_runtime tw_this_runtime = {
    TW_RUNTIME_VERSION, sizeof(tw_runtime), tw_model_new,    tw_model_free,   tw_model_set_foreign,
    tw_model_bytes,     tw_call_begin,      tw_call_end,     tw_model_call,   tw_set_own_threads,
    tw_last_error,      tw_profile_start,   tw_profile_stop, tw_profile_read,
};
