// A convolution of each channel by itself, sixteen channels of one pixel at a time.
#ifndef INTEGERS_DEPTHWISE_H
#define INTEGERS_DEPTHWISE_H

#include "packing.h"

// Weights of sixteen channels: with dot products [kernel_y][kernel_x / 4][LANES][4], else [taps][LANES].
#if defined(__AVX512VNNI__)
typedef int8_t each_tap;
#else
typedef int16_t each_tap;
#endif

static inline size_t across(const struct layer *of) {
#if defined(__AVX512VNNI__)
    return rounded((size_t)of->kernel_x, TOGETHER);
#else
    return (size_t)of->kernel_x;
#endif
}

static inline size_t each_taps(const struct layer *of) { return (size_t)of->kernel_y * across(of) * LANES; }

// Channels [first, first + n), at most sixteen; without `of->weights` being looked at if `ones`.
static void pack_each(const struct layer *of, int first, int n, int ones, each_tap *to) {
    const int sign = sign_of(of);
    const size_t taps = taps_of(of);
    memset(to, 0, each_taps(of) * sizeof *to);
    for (int m = 0; m < n; m++) {
        const uint8_t *from = of->weights + (size_t)(first + m) * taps;
        for (int k = 0; k < of->kernel_y; k++) {
            for (int l = 0; l < of->kernel_x; l++) {
                const int value = ones ? 1 : (int8_t)(from[k * of->kernel_x + l] ^ sign);
#if defined(__AVX512VNNI__)
                to[(((size_t)k * across(of) + (size_t)l) / TOGETHER * LANES + (size_t)m) * TOGETHER + (size_t)l % TOGETHER] =
                    (each_tap)value;
#else
                to[((size_t)k * across(of) + (size_t)l) * LANES + (size_t)m] = (each_tap)value;
#endif
            }
        }
    }
}

static void add_fixed_each(const struct layer *of, int first, int n, int32_t *fixed) {
    const int32_t zero = zero_of(&of->given);
    const int sign = sign_of(of);
    const size_t taps = taps_of(of);
    for (int m = 0; m < n; m++) {
        int32_t sum = 0;
        for (size_t t = 0; t < taps; t++) sum += (int8_t)(of->weights[(size_t)(first + m) * taps + t] ^ sign);
        fixed[m] += zero * ((int32_t)taps * weight_zero(of, first + m) - sum);
    }
}

// Adds the products of the window at `rows`, `step` bytes from a column of the kernel to the next.
static inline __attribute__((always_inline)) void multiply_each(const int kernel_y, const int kernel_x,
                                                                const uint8_t *const *rows, size_t at, size_t step,
                                                                const each_tap *taps, int32_t *sums) {
#if defined(__AVX512VNNI__)
    __m512i held = _mm512_loadu_si512(sums);
    for (int k = 0; k < kernel_y; k++) {
        const uint8_t *from = rows[k] + at;
        for (int l = 0; l < kernel_x; l += TOGETHER, taps += LANES * TOGETHER) {
            __m512i four = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(from + (size_t)l * step)));
            for (int t = 1; t < TOGETHER && l + t < kernel_x; t++) {
                const __m512i next =
                    _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(from + (size_t)(l + t) * step)));
                four = _mm512_or_si512(four, _mm512_slli_epi32(next, (unsigned)(8 * t)));
            }
            held = _mm512_dpbusd_epi32(held, four, _mm512_loadu_si512(taps));
        }
    }
    _mm512_storeu_si512(sums, held);
#else
    for (int k = 0; k < kernel_y; k++) {
        for (int l = 0; l < kernel_x; l++, taps += LANES) {
            const uint8_t *from = rows[k] + at + (size_t)l * step;
            for (int m = 0; m < LANES; m++) sums[m] += from[m] * taps[m];
        }
    }
#endif
}

static inline void window_sums(const struct layer *of, const uint8_t *const *rows, size_t at, size_t step,
                               const each_tap *taps, int32_t *sums) {
    if (of->kernel_y == 3 && of->kernel_x == 3) {
        multiply_each(3, 3, rows, at, step, taps, sums);
    } else {
        multiply_each(of->kernel_y, of->kernel_x, rows, at, step, taps, sums);
    }
}

#endif
