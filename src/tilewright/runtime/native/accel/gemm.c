/* Steps of the GEMM array: acc += inp * transpose(wgt), modulo 2**32. */
#include <string.h>

#include "machine.h"

#define CHAIN                                                                    \
  int32_t *restrict acc, const int8_t *restrict inp, const int8_t *restrict wgt, \
      const int64_t *restrict places, int64_t count, const tw_accel_config *c

/* So that what a loop indexes stays in registers. */
#define UNROLLED _Pragma("GCC unroll 8")

static void chain_any(CHAIN) {
  for (int64_t at = 0; at < count; ++at) {
    const int8_t *x = inp + places[2 * at], *w = wgt + places[2 * at + 1];
    for (int32_t b = 0; b < c->batch; ++b) {
      for (int32_t o = 0; o < c->block_out; ++o) {
        int32_t sum = 0;
        for (int32_t k = 0; k < c->block_in; ++k) {
          sum += x[b * c->block_in + k] * w[o * c->block_in + k];
        }
        int32_t *to = &acc[b * c->block_out + o];
        *to = (int32_t)((uint32_t)*to + (uint32_t)sum);
      }
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

__attribute__((target("arch=armv8.2-a+dotprod"))) static void chain_1x16x16(CHAIN) {
  (void)c;
  int32x4_t sum[4], more[4]; /* two chains of dependent instructions each */
  UNROLLED
  for (int32_t o = 0; o < 4; ++o) {
    sum[o] = vld1q_s32(acc + 4 * o);
    more[o] = vdupq_n_s32(0);
  }
  for (int64_t at = 0; at < count; ++at) {
    int8x16_t x = vld1q_s8(inp + places[2 * at]);
    const int8_t *w = wgt + places[2 * at + 1];
    UNROLLED
    for (int32_t o = 0; o < 4; ++o, w += 16) {
      sum[o] = vdotq_laneq_s32(sum[o], vld1q_s8(w), x, 0);
      more[o] = vdotq_laneq_s32(more[o], vld1q_s8(w + 64), x, 1);
      sum[o] = vdotq_laneq_s32(sum[o], vld1q_s8(w + 128), x, 2);
      more[o] = vdotq_laneq_s32(more[o], vld1q_s8(w + 192), x, 3);
    }
  }
  UNROLLED
  for (int32_t o = 0; o < 4; ++o) vst1q_s32(acc + 4 * o, vaddq_s32(sum[o], more[o]));
}

enum { IS_GROUPED = true };
static bool has_fast_chain(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

#elif defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void chain_1x16x16(CHAIN) {
  (void)c;
  for (int32_t o = 0; o < 16; o += 8) { /* as many outputs as there are registers for */
    __m256i s[8];
    UNROLLED
    for (int32_t i = 0; i < 8; ++i) s[i] = _mm256_setzero_si256();
    for (int64_t at = 0; at < count; ++at) {
      __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(inp + places[2 * at])));
      const int8_t *w = wgt + places[2 * at + 1] + 16 * o;
      UNROLLED
      for (int32_t i = 0; i < 8; ++i) {
        __m256i row = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + 16 * i)));
        s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(x, row));
      }
    }
    UNROLLED
    for (int32_t i = 0; i < 8; i += 4) {
      __m256i t = _mm256_hadd_epi32(_mm256_hadd_epi32(s[i], s[i + 1]),
                                    _mm256_hadd_epi32(s[i + 2], s[i + 3]));
      __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
      __m128i *to = (__m128i *)(acc + o + i);
      _mm_storeu_si128(to, _mm_add_epi32(_mm_loadu_si128(to), sum));
    }
  }
}

enum { IS_GROUPED = false };
static bool has_fast_chain(void) { return __builtin_cpu_supports("avx2") != 0; }

#else
#define chain_1x16x16 chain_any
enum { IS_GROUPED = false };
static bool has_fast_chain(void) { return false; }
#endif

static bool is_fast(const tw_accel_config *c) {
  return c->batch == 1 && c->block_in == 16 && c->block_out == 16 && has_fast_chain();
}

tw_gemm_chain tw_gemm_chain_of(const tw_accel_config *c) {
  return is_fast(c) ? chain_1x16x16 : chain_any;
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
