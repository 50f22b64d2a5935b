// Weights of some filters as products read them, with what does not depend on pixels.
#ifndef INTEGERS_PACKING_H
#define INTEGERS_PACKING_H

#include "rounding.h"

static inline int32_t zero_of(const struct scaled *of) { return *of->zero ^ of->flip; }

// Weights are multiplied as signed bytes.
static inline int sign_of(const struct layer *of) { return of->weight.flip ^ FLIP; }

static inline int32_t weight_zero(const struct layer *of, int filter) {
    return (int8_t)(of->weight.zero[of->zeros_apart ? filter : 0] ^ sign_of(of));
}

static int any_weight_zero(const struct layer *of) {
    for (int m = 0; m < (of->zeros_apart ? of->filters : 1); m++) {
        if (weight_zero(of, m)) return 1;
    }
    return 0;
}

static inline size_t taps_of(const struct layer *of) { return (size_t)of->kernel_y * (size_t)of->kernel_x; }

static struct rounding rounding_of(const struct scaled *to, const float *factors, int flip) {
    const int32_t zero = zero_of(to);
    return (struct rounding){factors, (float)-zero, (float)(255 - zero), zero, flip};
}

// What sums of filters [first, first + n) are multiplied with; none of the others of sixteen. In this order,
// as ONNX Runtime does: each operation rounds.
static void pack_factors(const struct layer *of, int first, int n, float *factors) {
    const float given = *of->given.scale, made = *of->made.scale;
    for (int m = 0; m < n; m += LANES) {
        const int count = lesser(n - m, LANES);
        float scales[LANES] = {0};
        if (of->scales_apart) {
            memcpy(scales, of->weight.scale + first + m, (size_t)count * sizeof *scales);
        } else {
            for (int i = 0; i < count; i++) scales[i] = *of->weight.scale;
        }
        for (int i = 0; i < LANES; i++) factors[m + i] = given * scales[i] / made;
        for (int i = count; i < LANES; i++) factors[m + i] = 0;
    }
}

static void add_taps(const tap *panel, size_t n_inputs, int32_t *sums) {
#if defined(__AVX512VNNI__)
    __m512i held = _mm512_setzero_si512();
    for (size_t k = 0; k < n_inputs; k += TOGETHER)
        held = _mm512_dpbusd_epi32(held, _mm512_set1_epi8(1), _mm512_loadu_si512(panel + k * LANES));
    _mm512_storeu_si512(sums, held);
    return;
#endif
    for (size_t k = 0; k < n_inputs; k += TOGETHER) {
        for (int m = 0; m < LANES; m++) {
            for (int t = 0; t < TOGETHER; t++) sums[m] += panel[k * LANES + (size_t)(m * TOGETHER + t)];
        }
    }
}

#if defined(__AVX512VNNI__)
// Sixteen bytes, or the first of them: the others are zero.
static inline __attribute__((always_inline)) __m512i quarter(const uint8_t *from, const int all, __mmask16 some) {
    return _mm512_castsi128_si512(all ? _mm_loadu_si128((const void *)from) : _mm_maskz_loadu_epi8(some, from));
}

// Sixteen inputs of sixteen filters, or the first n: four of each together.
static inline __attribute__((always_inline)) void pack_square(const uint8_t *from, size_t stride, const int all,
                                                              size_t n, int sign, tap *panel) {
    const __mmask16 some = all ? 0xffff : (__mmask16)((1u << n) - 1);
    const __m512i signs = _mm512_broadcast_i32x4(_mm_maskz_set1_epi8(some, (char)sign));
    __m512i v[4];
    for (size_t i = 0; i < 4; i++) {
        v[i] = quarter(from + i * stride, all, some);
        for (size_t j = 1; j < 4; j++) {
            const __m128i next = _mm512_castsi512_si128(quarter(from + (i + 4 * j) * stride, all, some));
            v[i] = j == 1   ? _mm512_inserti32x4(v[i], next, 1)
                   : j == 2 ? _mm512_inserti32x4(v[i], next, 2)
                            : _mm512_inserti32x4(v[i], next, 3);
        }
        v[i] = _mm512_xor_si512(v[i], signs);
    }
    const __m512i low[2] = {_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpacklo_epi32(v[2], v[3])};
    const __m512i high[2] = {_mm512_unpackhi_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[2], v[3])};
    const __m512i made[4] = {_mm512_unpacklo_epi64(low[0], low[1]), _mm512_unpackhi_epi64(low[0], low[1]),
                             _mm512_unpacklo_epi64(high[0], high[1]), _mm512_unpackhi_epi64(high[0], high[1])};
    for (size_t i = 0; i < 4 && i * TOGETHER < n; i++) _mm512_storeu_si512(panel + i * TOGETHER * LANES, made[i]);
}
#endif

// Inputs [0, n_inputs) of n filters, `stride` bytes from one to the next, as a panel; they lie one by one.
static void pack_rows(const uint8_t *from, size_t stride, int n, size_t n_inputs, int sign, tap *panel) {
#if defined(__AVX512VNNI__)
    if (n == LANES) {
        size_t k = 0;
        for (; k + 16 <= n_inputs; k += 16) pack_square(from + k, stride, 1, 16, sign, panel + k * LANES);
        if (k < n_inputs) pack_square(from + k, stride, 0, n_inputs - k, sign, panel + k * LANES);
        return;
    }
#endif
    for (size_t k = 0; k < n_inputs; k += TOGETHER) {
        const size_t count = n_inputs - k < TOGETHER ? n_inputs - k : TOGETHER;
        for (int m = 0; m < n; m++) {
            const uint8_t *row = from + (size_t)m * stride + k;
            tap *to = panel + k * LANES + m * TOGETHER;
            for (size_t t = 0; t < count; t++) to[t] = (int8_t)(row[t] ^ sign);
        }
    }
}

// The same where filters lie beside each other: `stride` bytes from one input to the next.
static void pack_columns(const uint8_t *from, size_t stride, int n, size_t n_inputs, int sign, tap *panel) {
    size_t k = 0;
#if defined(__AVX512VNNI__)
    const __m128i signs = _mm_set1_epi8((char)sign);
    for (; n == LANES && k + TOGETHER <= n_inputs; k += TOGETHER) {
        __m128i row[TOGETHER];
        for (size_t t = 0; t < TOGETHER; t++)
            row[t] = _mm_xor_si128(_mm_loadu_si128((const void *)(from + (k + t) * stride)), signs);
        const __m128i low[2] = {_mm_unpacklo_epi8(row[0], row[1]), _mm_unpacklo_epi8(row[2], row[3])};
        const __m128i high[2] = {_mm_unpackhi_epi8(row[0], row[1]), _mm_unpackhi_epi8(row[2], row[3])};
        __m128i *to = (void *)(panel + k * LANES);
        _mm_storeu_si128(to, _mm_unpacklo_epi16(low[0], low[1]));
        _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(low[0], low[1]));
        _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(high[0], high[1]));
        _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(high[0], high[1]));
    }
#endif
    for (; k < n_inputs; k++) {
        tap *to = panel + k / TOGETHER * TOGETHER * LANES + k % TOGETHER;
        for (int m = 0; m < n; m++) to[m * TOGETHER] = (int8_t)(from[k * stride + (size_t)m] ^ sign);
    }
}

// How the inputs of a layer lie in panels: rows of its kernel, each filled up to `run`; `depth` bytes a pixel.
struct laid {
    size_t depth, run, total;
};

static struct laid laid_of(const struct layer *of, size_t depth) {
    const size_t run = rounded((size_t)of->kernel_x * depth, TOGETHER);
    return (struct laid){depth, run, (size_t)of->kernel_y * run};
}

// Bytes that `pack_panel` needs beside the panel: filters whose channels it puts last.
static size_t turned_bytes(const struct layer *of, const struct laid *laid) {
    return taps_of(of) == 1 ? 0 : laid->total * LANES;
}

static void turn_filter(const struct layer *of, const struct laid *laid, const uint8_t *from, uint8_t *to) {
    for (int k = 0; k < of->kernel_y; k++) {
        for (int l = 0; l < of->kernel_x; l++, from++) {
            uint8_t *tap = to + (size_t)k * laid->run + (size_t)l * laid->depth;
            for (int c = 0; c < of->channels; c++) tap[c] = from[(size_t)c * taps_of(of)];
        }
    }
}

// A panel of up to sixteen filters; of a kernel of one pixel inputs [first_input, first_input + n_inputs) of
// them, else all.
static void pack_panel(const struct layer *of, const struct laid *laid, int first, int n, int first_input,
                       int n_inputs, uint8_t *turned, tap *panel) {
    const int sign = sign_of(of);
    const size_t taps = taps_of(of), total = taps == 1 ? (size_t)n_inputs : laid->total;
    if (n < LANES || rounded(total, TOGETHER) < laid->total || total % TOGETHER)
        memset(panel, 0, laid->total * LANES * sizeof *panel);
    if (of->by_inputs) {
        const size_t filters = (size_t)of->filters;
        pack_columns(of->weights + (size_t)first_input * filters + (size_t)first, filters, n, total, sign, panel);
        return;
    }
    const uint8_t *from = of->weights + ((size_t)first * (size_t)of->channels + (size_t)first_input) * taps;
    if (taps == 1) {
        pack_rows(from, (size_t)of->channels, n, total, sign, panel);
        return;
    }
    memset(turned, sign, laid->total * LANES);  // zeros between
    for (int m = 0; m < n; m++)
        turn_filter(of, laid, from + (size_t)m * taps * (size_t)of->channels, turned + (size_t)m * total);
    pack_rows(turned, total, n, total, sign, panel);
}

// Adds to `fixed` what the zero points make of weights of sixteen filters, of which `sums` are the sums.
static inline void add_zeros(const struct layer *of, int has_zeros, int first, int n, int inputs, const int32_t *sums,
                             int32_t *fixed) {
    const int32_t zero = zero_of(&of->given);
    for (int m = 0; m < LANES; m++) fixed[m] -= zero * sums[m];
    for (int m = 0; has_zeros && m < n; m++) fixed[m] += zero * (inputs * weight_zero(of, first + m));
}

// The same of a panel, of `inputs` for each filter.
static void add_fixed(const struct layer *of, int has_zeros, const struct laid *laid, int first, int n,
                      const tap *panel, size_t inputs, int32_t *fixed) {
    int32_t sums[LANES] = {0};
    add_taps(panel, laid->total, sums);
    add_zeros(of, has_zeros, first, n, (int)inputs, sums, fixed);
}

static void add_bias(const struct layer *of, int first, int n, int32_t *fixed) {
    if (!of->bias) return;
    for (int m = 0; m < n; m++) fixed[m] += of->bias[first + m];
}

// Takes from the sums of a pixel what the zero points of weights make of it; `across` inputs of each run.
static void take_weight_zeros(const struct layer *of, int first, int n, const pixel *x, const struct runs *runs,
                              size_t across, int32_t *sums) {
    int32_t all = 0;
    for (int r = 0; r < runs->count; r++) {
        const pixel *from = x + runs->steps[r];
        for (size_t k = 0; k < across; k++) all += from[k];
    }
    for (int m = 0; m < n; m++) sums[m] -= weight_zero(of, first + m) * all;
}

#endif
