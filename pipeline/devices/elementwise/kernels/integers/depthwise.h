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

static inline size_t place_of(const struct layer *of, int k, int l, int m) {
#if defined(__AVX512VNNI__)
    return (((size_t)k * across(of) + (size_t)l) / TOGETHER * LANES + (size_t)m) * TOGETHER + (size_t)l % TOGETHER;
#else
    return ((size_t)k * across(of) + (size_t)l) * LANES + (size_t)m;
#endif
}

// Channels [first, first + n), at most sixteen.
static inline __attribute__((always_inline)) void pack_kernels(const struct layer *of, const int kernel_y,
                                                               const int kernel_x, int first, int n, each_tap *to) {
    const int sign = sign_of(of);
    const uint8_t *from = of->weights + (size_t)first * (size_t)(kernel_y * kernel_x);
    memset(to, 0, each_taps(of) * sizeof *to);
    for (int m = 0; m < n; m++) {
        for (int k = 0; k < kernel_y; k++) {
            for (int l = 0; l < kernel_x; l++) to[place_of(of, k, l, m)] = (int8_t)(*from++ ^ sign);
        }
    }
}

#if defined(__AVX512VNNI__)
// The same of sixteen channels of 3 x 3 taps: three of a row in the first bytes of a dword, or of the one before it.
static void pack_threes(const struct layer *of, int first, each_tap *to) {
    const uint8_t *from = of->weights + (size_t)first * 9;
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(9));
    const __m512i three = _mm512_set1_epi32(0xffffff);
    const __m512i signs = _mm512_and_si512(three, _mm512_set1_epi8((char)sign_of(of)));
    const __m512i rows[3] = {_mm512_i32gather_epi32(places, from, 1), _mm512_i32gather_epi32(places, from + 3, 1),
                             _mm512_srli_epi32(_mm512_i32gather_epi32(places, from + 5, 1), 8)};
    for (int k = 0; k < 3; k++)
        _mm512_storeu_si512(to + k * LANES * TOGETHER, _mm512_xor_si512(_mm512_and_si512(rows[k], three), signs));
}
#endif

static void pack_each(const struct layer *of, int first, int n, each_tap *to) {
#if defined(__AVX512VNNI__)
    if (of->kernel_y == 3 && of->kernel_x == 3 && n == LANES) {
        pack_threes(of, first, to);
        return;
    }
#endif
    if (of->kernel_y == 3 && of->kernel_x == 3) {
        pack_kernels(of, 3, 3, first, n, to);
    } else {
        pack_kernels(of, of->kernel_y, of->kernel_x, first, n, to);
    }
}

// Weights that are all one.
static void pack_ones(const struct layer *of, each_tap *to) {
    memset(to, 0, each_taps(of) * sizeof *to);
    for (int m = 0; m < LANES; m++) {
        for (int k = 0; k < of->kernel_y; k++) {
            for (int l = 0; l < of->kernel_x; l++) to[place_of(of, k, l, m)] = 1;
        }
    }
}

// Adds to `fixed` what the zero points make of packed channels [first, first + n).
static void add_fixed_each(const struct layer *of, int has_zeros, int first, int n, const each_tap *taps,
                           int32_t *fixed) {
    int32_t sums[LANES] = {0};
#if defined(__AVX512VNNI__)
    add_taps(taps, each_taps(of) / LANES, sums);
#else
    for (size_t i = 0; i < each_taps(of); i++) sums[i % LANES] += taps[i];
#endif
    add_zeros(of, has_zeros, first, n, (int)taps_of(of), sums, fixed);
}

// A row of results of sixteen channels: its pixels are LANES bytes apart, windows begin at `rows`.
struct window {
    const uint8_t *const *rows;
    size_t step, stride;  // bytes from a column of the kernel to the next, and from a window to the next
};

#if defined(__AVX512VNNI__)
// Four columns of sixteen channels, the four of each channel together.
static inline __m512i columns(const uint8_t *from, size_t step) {
    __m512i four;
    if (step == LANES) {
        four = _mm512_loadu_si512(from);
    } else {
        four = _mm512_castsi128_si512(_mm_loadu_si128((const void *)from));
        four = _mm512_inserti32x4(four, _mm_loadu_si128((const void *)(from + step)), 1);
        four = _mm512_inserti32x4(four, _mm_loadu_si128((const void *)(from + 2 * step)), 2);
        four = _mm512_inserti32x4(four, _mm_loadu_si128((const void *)(from + 3 * step)), 3);
    }
    const __m128i order = _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_shuffle_epi8(turned_dwords(four), _mm512_broadcast_i32x4(order));
}
#endif

// Sums `to` [n][LANES] of windows j to j + n: `fixed` and their products.
static inline __attribute__((always_inline)) void multiply_each(const int n, const int kernel_y, const int kernel_x,
                                                                const struct window *of, int j, const each_tap *taps,
                                                                const int32_t *fixed, int32_t *to) {
#if defined(__AVX512VNNI__)
    __m512i held[4];
    for (int i = 0; i < n; i++) held[i] = _mm512_loadu_si512(fixed);
    // Columns of three taps and one more serve the next window, too, if it begins there.
    const int pairs = kernel_x == 3 && of->stride == LANES && of->step == LANES && n % 2 == 0;
    for (int k = 0; k < kernel_y; k++) {
        const uint8_t *from = of->rows[k] + (size_t)j * of->stride;
        for (int l = 0; l < kernel_x; l += TOGETHER, taps += LANES * TOGETHER) {
            const __m512i w = _mm512_loadu_si512(taps);
            if (pairs) {
                const __m512i moved = _mm512_slli_epi32(w, 8);
                for (int i = 0; i + 1 < n; i += 2) {
                    const __m512i four = columns(from + (size_t)i * of->stride, LANES);
                    held[i] = _mm512_dpbusd_epi32(held[i], four, w);
                    held[i + 1] = _mm512_dpbusd_epi32(held[i + 1], four, moved);
                }
                continue;
            }
            for (int i = 0; i < n; i++) {
                const __m512i four = columns(from + (size_t)i * of->stride + (size_t)l * of->step, of->step);
                held[i] = _mm512_dpbusd_epi32(held[i], four, w);
            }
        }
    }
    for (int i = 0; i < n; i++) _mm512_storeu_si512(to + i * LANES, held[i]);
#else
    for (int i = 0; i < n; i++, to += LANES) {
        const each_tap *w = taps;
        int32_t sums[LANES];
        memcpy(sums, fixed, sizeof sums);
        for (int k = 0; k < kernel_y; k++) {
            const uint8_t *from = of->rows[k] + (size_t)(j + i) * of->stride;
            for (int l = 0; l < kernel_x; l++, w += LANES, from += of->step) {
                for (int m = 0; m < LANES; m++) sums[m] += from[m] * w[m];
            }
        }
        memcpy(to, sums, sizeof sums);
    }
#endif
}

enum { WINDOWS = 4 };

// The same for up to WINDOWS windows.
static inline void window_sums(const struct layer *of, int n, const struct window *window, int j, const each_tap *taps,
                               const int32_t *fixed, int32_t *to) {
    const int is_usual = of->kernel_y == 3 && of->kernel_x == 3;
    if (is_usual && n == WINDOWS) {
        multiply_each(WINDOWS, 3, 3, window, j, taps, fixed, to);
        return;
    }
    for (int i = 0; i < n; i++, to += LANES) {
        if (is_usual) {
            multiply_each(1, 3, 3, window, j + i, taps, fixed, to);
        } else {
            multiply_each(1, of->kernel_y, of->kernel_x, window, j + i, taps, fixed, to);
        }
    }
}

// How far beyond a row products of four columns may read.
static inline size_t columns_beyond(const struct layer *of) { return (size_t)(TOGETHER * of->step_x) * LANES; }

#endif
