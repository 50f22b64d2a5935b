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

enum { LANES = 16, TILE = 9 };

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

// Where the inputs of a pixel lie: `count` runs of `length` each, `steps` from where the pixel begins.
struct runs {
    int count;
    size_t length;
    const ptrdiff_t *steps;
};

// Sums `to` [n][LANES]: `from` and the products of n pixels with a panel [inputs / TOGETHER][LANES][TOGETHER].
static inline __attribute__((always_inline)) void multiply(const int n, const pixel *const *x, const struct runs *runs,
                                                           const tap *panel, const int32_t *from, size_t from_stride,
                                                           int32_t *to, size_t stride) {
#if defined(__AVX512VNNI__)
    // Few pixels have two sums each: a product waits for the one before it that adds to the same.
    const int sets = n <= TILE / 2 ? 2 : 1;
    __m512i held[TILE], more[TILE];
    for (int i = 0; i < n; i++) {
        held[i] = _mm512_loadu_si512(from + (size_t)i * from_stride);
        more[i] = _mm512_setzero_si512();
    }
    for (int r = 0; r < runs->count; r++) {
        const ptrdiff_t end = runs->steps[r] + (ptrdiff_t)runs->length;
        for (ptrdiff_t k = runs->steps[r]; k < end;) {
            __m512i w = _mm512_loadu_si512(panel);
            for (int i = 0; i < n; i++) {
                int32_t four;
                memcpy(&four, x[i] + k, sizeof four);
                held[i] = _mm512_dpbusd_epi32(held[i], _mm512_set1_epi32(four), w);
            }
            k += TOGETHER, panel += TOGETHER * LANES;
            if (sets == 1 || k >= end) continue;
            w = _mm512_loadu_si512(panel);
            for (int i = 0; i < n; i++) {
                int32_t four;
                memcpy(&four, x[i] + k, sizeof four);
                more[i] = _mm512_dpbusd_epi32(more[i], _mm512_set1_epi32(four), w);
            }
            k += TOGETHER, panel += TOGETHER * LANES;
        }
    }
    for (int i = 0; i < n; i++)
        _mm512_storeu_si512(to + (size_t)i * stride, sets == 1 ? held[i] : _mm512_add_epi32(held[i], more[i]));
#elif defined(__AVX512BW__)
    __m512i held[TILE];
    for (int i = 0; i < n; i++) held[i] = _mm512_loadu_si512(from + (size_t)i * from_stride);
    for (int r = 0; r < runs->count; r++) {
        const ptrdiff_t end = runs->steps[r] + (ptrdiff_t)runs->length;
        for (ptrdiff_t k = runs->steps[r]; k < end; k += TOGETHER, panel += TOGETHER * LANES) {
            const __m512i w = _mm512_loadu_si512(panel);
            for (int i = 0; i < n; i++) {
                int32_t two;
                memcpy(&two, x[i] + k, sizeof two);
                held[i] = _mm512_add_epi32(held[i], _mm512_madd_epi16(_mm512_set1_epi32(two), w));
            }
        }
    }
    for (int i = 0; i < n; i++) _mm512_storeu_si512(to + (size_t)i * stride, held[i]);
#elif defined(__AVX2__)
    for (int half = 0; half < 2; half++) {
        __m256i held[TILE];
        const tap *w_at = panel + half * LANES;
        for (int i = 0; i < n; i++)
            held[i] = _mm256_loadu_si256((const void *)(from + (size_t)i * from_stride + half * LANES / 2));
        for (int r = 0; r < runs->count; r++) {
            const ptrdiff_t end = runs->steps[r] + (ptrdiff_t)runs->length;
            for (ptrdiff_t k = runs->steps[r]; k < end; k += TOGETHER, w_at += TOGETHER * LANES) {
                const __m256i w = _mm256_loadu_si256((const void *)w_at);
                for (int i = 0; i < n; i++) {
                    int32_t two;
                    memcpy(&two, x[i] + k, sizeof two);
                    held[i] = _mm256_add_epi32(held[i], _mm256_madd_epi16(_mm256_set1_epi32(two), w));
                }
            }
        }
        for (int i = 0; i < n; i++)
            _mm256_storeu_si256((void *)(to + (size_t)i * stride + half * LANES / 2), held[i]);
    }
#else
    for (int i = 0; i < n; i++) {
        int32_t all[LANES];
        const tap *w = panel;
        memcpy(all, from + (size_t)i * from_stride, sizeof all);
        for (int r = 0; r < runs->count; r++) {
            const pixel *at = x[i] + runs->steps[r], *end = at + runs->length;
            for (; at < end; at += TOGETHER, w += TOGETHER * LANES) {
                for (int m = 0; m < LANES; m++) {
                    for (int t = 0; t < TOGETHER; t++) all[m] += at[t] * w[m * TOGETHER + t];
                }
            }
        }
        memcpy(to + (size_t)i * stride, all, sizeof all);
    }
#endif
}

// The same for up to TILE pixels.
static void multiply_tile(int n, const pixel *const *x, const struct runs *runs, const tap *panel, const int32_t *from,
                          size_t from_stride, int32_t *to, size_t stride) {
#define OF(count) \
    case count:   \
        multiply(count, x, runs, panel, from, from_stride, to, stride); \
        break;
    switch (n) { OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7) OF(8) OF(9) }
#undef OF
}

// How many of `left` pixels are computed next: nine rather than eight and one.
static inline int next_tile(int left) { return left > TILE ? TILE - 1 : left; }

#endif
