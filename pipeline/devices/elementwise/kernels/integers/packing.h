// Weights of some filters as products read them, with what does not depend on pixels.
#ifndef INTEGERS_PACKING_H
#define INTEGERS_PACKING_H

#include "arithmetic.h"

static inline int32_t zero_of(const struct scaled *of) { return *of->zero ^ of->flip; }

// Weights are multiplied as signed bytes.
static inline int sign_of(const struct layer *of) { return of->weight.flip ^ 0x80; }

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
    for (size_t m = 0; m < rounded((size_t)n, LANES); m++)
        factors[m] = (int)m < n ? given * of->weight.scale[of->scales_apart ? first + (int)m : 0] / made : 0;
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

// Inputs [0, n_inputs) of n filters, `stride` bytes from one to the next, as a panel; they lie one by one.
static void pack_rows(const uint8_t *from, size_t stride, int n, size_t n_inputs, int sign, tap *panel) {
    size_t k = 0;
#if defined(__AVX512VNNI__)
    if (n == LANES && stride < INT32_MAX / LANES) {
        const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32((int)stride));
        const __m512i signs = _mm512_set1_epi8((char)sign);
        for (; k + TOGETHER <= n_inputs; k += TOGETHER) {
            const __m512i w = _mm512_i32gather_epi32(places, from + k, 1);
            _mm512_storeu_si512(panel + k * LANES, _mm512_xor_si512(w, signs));
        }
    }
#endif
    for (; k < n_inputs; k += TOGETHER) {
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

// Bytes that `pack_panel` needs beside the panel: filters whose channels it puts last.
static size_t turned_bytes(const struct layer *of) {
    return taps_of(of) == 1 ? 0 : taps_of(of) * (size_t)of->channels * LANES;
}

// A panel of up to sixteen filters, of inputs [first_input, first_input + n_inputs); of a kernel of several
// pixels all of them, by pixels.
static void pack_panel(const struct layer *of, int first, int n, int first_input, int n_inputs, uint8_t *turned,
                       tap *panel) {
    const int sign = sign_of(of);
    const size_t taps = taps_of(of), inputs = (size_t)n_inputs, total = taps * inputs;
    if (n < LANES || total % TOGETHER) memset(panel, 0, rounded(total, TOGETHER) * LANES * sizeof *panel);
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
    for (int m = 0; m < n; m++) {
        for (size_t t = 0; t < taps; t++) {
            for (size_t c = 0; c < inputs; c++) turned[(size_t)m * total + t * inputs + c] = from[c * taps + t];
        }
        from += total;
    }
    pack_rows(turned, total, n, total, sign, panel);
}

// Adds to `fixed` what the zero points make of a panel, whose inputs it has all or some of.
static void add_fixed(const struct layer *of, int first, int n, const tap *panel, size_t total, int32_t *fixed) {
    const int32_t zero = zero_of(&of->given);
    int32_t sums[LANES] = {0};
    add_taps(panel, rounded(total, TOGETHER), sums);
    for (int m = 0; m < n; m++)
        fixed[m] += zero * ((int32_t)total * weight_zero(of, first + m) - sums[m]);
}

static void add_bias(const struct layer *of, int first, int n, int32_t *fixed) {
    if (!of->bias) return;
    for (int m = 0; m < n; m++) fixed[m] += of->bias[first + m];
}

// Takes from the sums of a pixel what the zero points of weights make of it.
static void take_weight_zeros(const struct layer *of, int first, int n, const pixel *x, size_t total, int32_t *sums) {
    int32_t all = 0;
    for (size_t k = 0; k < total; k++) all += x[k];
    for (int m = 0; m < n; m++) sums[m] -= weight_zero(of, first + m) * all;
}

#endif
