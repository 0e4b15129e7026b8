/* One step of the GEMM array: acc += inp * transpose(wgt), modulo 2**32. */
#include <string.h>

#include "machine.h"

static void step_any(int32_t *restrict acc, const int8_t *restrict inp, const int8_t *restrict wgt,
                     const tw_accel_config *c) {
  for (int32_t b = 0; b < c->batch; ++b) {
    for (int32_t o = 0; o < c->block_out; ++o) {
      int32_t sum = 0;
      for (int32_t k = 0; k < c->block_in; ++k) {
        sum += inp[b * c->block_in + k] * wgt[o * c->block_in + k];
      }
      int32_t *to = &acc[b * c->block_out + o];
      *to = (int32_t)((uint32_t)*to + (uint32_t)sum);
    }
  }
}

/* The default geometry, where processors have instructions for it. Dot products of four bytes by
 * element want the weights of all outputs side by side: groups of four inputs, then outputs. */
#if defined(__aarch64__) && defined(__linux__)
#include <arm_neon.h>
#include <sys/auxv.h>

#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif

__attribute__((target("arch=armv8.2-a+dotprod"))) static void step_1x16x16(
    int32_t *restrict acc, const int8_t *restrict inp, const int8_t *restrict wgt,
    const tw_accel_config *c) {
  (void)c;
  int8x16_t a = vld1q_s8(inp);
  for (int32_t o = 0; o < 16; o += 4, wgt += 16) {
    int32x4_t sum = vld1q_s32(acc + o);
    sum = vdotq_laneq_s32(sum, vld1q_s8(wgt), a, 0);
    sum = vdotq_laneq_s32(sum, vld1q_s8(wgt + 64), a, 1);
    sum = vdotq_laneq_s32(sum, vld1q_s8(wgt + 128), a, 2);
    sum = vdotq_laneq_s32(sum, vld1q_s8(wgt + 192), a, 3);
    vst1q_s32(acc + o, sum);
  }
}

enum { IS_GROUPED = true };
static bool has_fast_step(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

#elif defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void step_1x16x16(int32_t *restrict acc,
                                                         const int8_t *restrict inp,
                                                         const int8_t *restrict wgt,
                                                         const tw_accel_config *c) {
  (void)c;
  __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)inp));
  for (int32_t o = 0; o < 16; o += 4) {
    __m256i s[4];
    for (int32_t i = 0; i < 4; ++i) {
      __m128i row = _mm_loadu_si128((const __m128i *)(wgt + 16 * (o + i)));
      s[i] = _mm256_madd_epi16(a, _mm256_cvtepi8_epi16(row));
    }
    __m256i t = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    __m128i old = _mm_loadu_si128((const __m128i *)(acc + o));
    _mm_storeu_si128((__m128i *)(acc + o), _mm_add_epi32(old, sum));
  }
}

enum { IS_GROUPED = false };
static bool has_fast_step(void) { return __builtin_cpu_supports("avx2") != 0; }

#else
#define step_1x16x16 step_any
enum { IS_GROUPED = false };
static bool has_fast_step(void) { return false; }
#endif

static bool is_fast(const tw_accel_config *c) {
  return c->batch == 1 && c->block_in == 16 && c->block_out == 16 && has_fast_step();
}

tw_gemm_step tw_gemm_step_of(const tw_accel_config *c) {
  return is_fast(c) ? step_1x16x16 : step_any;
}

void tw_gemm_arrange(int8_t *wgt, const tw_accel_config *c) {
  if (!IS_GROUPED || !is_fast(c)) return;
  int32_t words[64];
  memcpy(words, wgt, sizeof words);
  for (int32_t o = 0; o < 16; ++o) {
    for (int32_t group = 0; group < 4; ++group) {
      memcpy(wgt + 64 * group + 4 * o, &words[4 * o + group], sizeof *words);
    }
  }
}
