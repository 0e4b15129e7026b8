/* Operating system requests for instruction set extensions, and floating point modes.
 */
#define _GNU_SOURCE
#include "tilewright.h"

#if defined(__linux__) && defined(__x86_64__)
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

int32_t tw_request_tiles(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  static atomic_int granted;
  if (atomic_load_explicit(&granted, memory_order_relaxed)) return TW_OK;
  if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0) {
    return tw_error(TW_ERROR_CHECK, "the system does not grant AMX tile registers");
  }
  atomic_store_explicit(&granted, 1, memory_order_relaxed);
  return TW_OK;
}
#else
int32_t tw_request_tiles(void) {
  return tw_error(TW_ERROR_CHECK, "this machine has no AMX tile registers");
}
#endif

#if defined(__x86_64__)
enum { FLUSH_TO_ZERO = 1 << 15, STATUS = 0x3f }; /* STATUS: sticky exception flags */

uint32_t tw_float_mode(void) { return __builtin_ia32_stmxcsr() & ~(uint32_t)STATUS; }

void tw_set_float_mode(uint32_t mode) {
  uint32_t now = __builtin_ia32_stmxcsr();
  if ((now & ~(uint32_t)STATUS) == mode) return; /* writing serializes the pipeline */
  __builtin_ia32_ldmxcsr(mode | (now & STATUS));
}

uint32_t tw_flush_subnormals(void) {
  uint32_t before = tw_float_mode();
  tw_set_float_mode(before | FLUSH_TO_ZERO);
  return before;
}
#else
uint32_t tw_float_mode(void) { return 0; }
void tw_set_float_mode(uint32_t mode) { (void)mode; }
uint32_t tw_flush_subnormals(void) { return 0; }
#endif
