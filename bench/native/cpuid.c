/* Hides instruction sets from a whole process, whatever library asks the processor:

     gcc -O2 -shared -fPIC -o cpuid.so cpuid.c
     LD_PRELOAD=./cpuid.so CPUID_HIDES=avx512,amx program

   Settings of single libraries (ONEDNN_MAX_CPU_ISA) reach only their own kernels. Here the kernel
   makes CPUID fault (arch_prctl), and the handler answers without the hidden bits. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_CPUID_SET = 0x1012, CPUID_LENGTH = 2, FEATURES_LEAF = 7 };

struct bits {
  unsigned eax, ebx, ecx, edx;
};

/* Of leaf 7, by subleaf. */
static const struct bits AVX512[2] = {{0, 0xdc230000u, 0x00005842u, 0x0080010cu},
                                      {0x00000020u, 0, 0, 0}};
static const struct bits AMX[2] = {{0, 0, 0, 0x03400000u}, {0x00200000u, 0, 0, 0}};
static const struct bits AVX_VNNI[2] = {{0, 0, 0, 0}, {0x00000010u, 0, 0, 0x00000430u}};

static struct bits hidden[2];

static void hide(const struct bits *these) {
  for (int sub = 0; sub < 2; sub++) {
    hidden[sub].eax |= these[sub].eax;
    hidden[sub].ebx |= these[sub].ebx;
    hidden[sub].ecx |= these[sub].ecx;
    hidden[sub].edx |= these[sub].edx;
  }
}

static long faults(int yes) { return syscall(SYS_arch_prctl, ARCH_CPUID_SET, !yes); }

static void on_fault(int number, siginfo_t *info, void *context) {
  (void)info;
  greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *at = (const unsigned char *)r[REG_RIP];
  if (at[0] != 0x0f || at[1] != 0xa2) {
    signal(number, SIG_DFL);
    return; /* it faults again */
  }
  unsigned leaf = (unsigned)r[REG_RAX], sub = (unsigned)r[REG_RCX], a, b, c, d;
  faults(0);
  __cpuid_count(leaf, sub, a, b, c, d);
  faults(1);
  if (leaf == FEATURES_LEAF && sub < 2) {
    a &= ~hidden[sub].eax, b &= ~hidden[sub].ebx;
    c &= ~hidden[sub].ecx, d &= ~hidden[sub].edx;
  }
  r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d;
  r[REG_RIP] += CPUID_LENGTH;
}

__attribute__((constructor)) static void start(void) {
  const char *named = getenv("CPUID_HIDES");
  if (!named) return;
  if (strstr(named, "avx512")) hide(AVX512);
  if (strstr(named, "amx")) hide(AMX);
  if (strstr(named, "avxvnni")) hide(AVX_VNNI);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGSEGV, &action, NULL) || faults(1)) {
    perror("cpuid: this system cannot hide instruction sets");
    _exit(2);
  }
}
