// Products of bytes and rounded sums, sixteen filters at a time, with what the processor has for it.
#ifndef INTEGERS_ARITHMETIC_H
#define INTEGERS_ARITHMETIC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "integers.h"

enum { LANES = 16, TILE = 8 };

// Of each product so many inputs are multiplied and added at once; pixels and weights lie so.
#if defined(__AVX512VNNI__)
typedef uint8_t pixel;
typedef int8_t tap;
enum { TOGETHER = 4 };
#else
typedef int16_t pixel;
typedef int16_t tap;
enum { TOGETHER = 2 };
#endif

static inline size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline int lesser(int a, int b) { return a < b ? a : b; }
static inline int greater(int a, int b) { return a > b ? a : b; }

// Adds to `sums` [n][LANES] the products of n pixels with a panel [n_inputs / TOGETHER][LANES][TOGETHER].
static inline __attribute__((always_inline)) void multiply(const int n, const pixel *const *x, const tap *panel,
                                                           size_t n_inputs, int32_t *sums, size_t stride) {
#if defined(__AVX512VNNI__)
    __m512i held[TILE];
    for (int i = 0; i < n; i++) held[i] = _mm512_loadu_si512(sums + (size_t)i * stride);
    for (size_t k = 0; k < n_inputs; k += TOGETHER) {
        const __m512i w = _mm512_loadu_si512(panel + k * LANES);
        for (int i = 0; i < n; i++) {
            int32_t four;
            memcpy(&four, x[i] + k, sizeof four);
            held[i] = _mm512_dpbusd_epi32(held[i], _mm512_set1_epi32(four), w);
        }
    }
    for (int i = 0; i < n; i++) _mm512_storeu_si512(sums + (size_t)i * stride, held[i]);
#elif defined(__AVX512BW__)
    __m512i held[TILE];
    for (int i = 0; i < n; i++) held[i] = _mm512_loadu_si512(sums + (size_t)i * stride);
    for (size_t k = 0; k < n_inputs; k += TOGETHER) {
        const __m512i w = _mm512_loadu_si512(panel + k * LANES);
        for (int i = 0; i < n; i++) {
            int32_t two;
            memcpy(&two, x[i] + k, sizeof two);
            held[i] = _mm512_add_epi32(held[i], _mm512_madd_epi16(_mm512_set1_epi32(two), w));
        }
    }
    for (int i = 0; i < n; i++) _mm512_storeu_si512(sums + (size_t)i * stride, held[i]);
#elif defined(__AVX2__)
    for (int half = 0; half < 2; half++) {
        __m256i held[TILE];
        int32_t *to = sums + half * LANES / 2;
        for (int i = 0; i < n; i++) held[i] = _mm256_loadu_si256((const void *)(to + (size_t)i * stride));
        for (size_t k = 0; k < n_inputs; k += TOGETHER) {
            const __m256i w = _mm256_loadu_si256((const void *)(panel + k * LANES + half * LANES));
            for (int i = 0; i < n; i++) {
                int32_t two;
                memcpy(&two, x[i] + k, sizeof two);
                held[i] = _mm256_add_epi32(held[i], _mm256_madd_epi16(_mm256_set1_epi32(two), w));
            }
        }
        for (int i = 0; i < n; i++) _mm256_storeu_si256((void *)(to + (size_t)i * stride), held[i]);
    }
#else
    for (int i = 0; i < n; i++) {
        int32_t *to = sums + (size_t)i * stride;
        for (size_t k = 0; k < n_inputs; k += TOGETHER) {
            for (int m = 0; m < LANES; m++) {
                for (int t = 0; t < TOGETHER; t++)
                    to[m] += x[i][k + (size_t)t] * panel[k * LANES + (size_t)(m * TOGETHER + t)];
            }
        }
    }
#endif
}

// The same for up to TILE pixels.
static void multiply_tile(int n, const pixel *const *x, const tap *panel, size_t n_inputs, int32_t *sums,
                          size_t stride) {
    if (n == TILE) {
        multiply(TILE, x, panel, n_inputs, sums, stride);
        return;
    }
    for (; n >= 4; n -= 4, x += 4, sums += 4 * stride) multiply(4, x, panel, n_inputs, sums, stride);
    for (; n > 0; n--, x++, sums += stride) multiply(1, x, panel, n_inputs, sums, stride);
}

// What rounds sums of some filters: beside the factor of each, the zero point of the result.
struct rounding {
    const float *factors;
    float low, high;
    int32_t zero, flip;
};

// Sixteen sums as bytes. Of what is no number the lowest is made.
static inline void round_all(const int32_t *sums, const float *factors, const struct rounding *how, uint8_t *to) {
#if defined(__AVX512BW__)
    __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums)), _mm512_loadu_ps(factors));
    v = _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(how->low)), _mm512_set1_ps(how->high));
    __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(how->zero));
    whole = _mm512_xor_si512(whole, _mm512_set1_epi32(how->flip));
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(whole));
#elif defined(__AVX2__)
    __m256i whole[2];
    for (int i = 0; i < 2; i++) {
        const __m256i eight = _mm256_loadu_si256((const void *)(sums + i * LANES / 2));
        __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(eight), _mm256_loadu_ps(factors + i * LANES / 2));
        v = _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(how->low)), _mm256_set1_ps(how->high));
        whole[i] = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(how->zero));
        whole[i] = _mm256_xor_si256(whole[i], _mm256_set1_epi32(how->flip));
    }
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(whole[0], whole[1]), 0xd8);
    _mm_storeu_si128((void *)to,
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#else
    for (int m = 0; m < LANES; m++) {
        float v = (float)sums[m] * factors[m];
        v = v > how->low ? v : how->low;
        v = v < how->high ? v : how->high;
        to[m] = (uint8_t)(((int32_t)__builtin_rintf(v) + how->zero) ^ how->flip);
    }
#endif
}

// Writes `n` of sixteen sums as bytes.
static inline void round_sums(const int32_t *sums, const float *factors, const struct rounding *how, int n,
                              uint8_t *to) {
    if (n == LANES) {
        round_all(sums, factors, how, to);
        return;
    }
    uint8_t bytes[LANES];
    round_all(sums, factors, how, bytes);
    memcpy(to, bytes, (size_t)n);
}

#endif
