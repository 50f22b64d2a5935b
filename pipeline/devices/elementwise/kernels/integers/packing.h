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
    for (size_t k = 0; k < n_inputs; k += TOGETHER) {
        for (int m = 0; m < LANES; m++) {
            for (int t = 0; t < TOGETHER; t++) sums[m] += panel[k * LANES + (size_t)(m * TOGETHER + t)];
        }
    }
}

static inline tap *place(tap *panel, size_t k, size_t m) {
    return panel + k / TOGETHER * TOGETHER * LANES + m * TOGETHER + k % TOGETHER;
}

// A panel of up to sixteen filters, of inputs [first_input, first_input + n_inputs), pixels of the kernel
// outside of them.
static void pack_panel(const struct layer *of, int first, int n, int first_input, int n_inputs, tap *panel) {
    const int sign = sign_of(of);
    const size_t taps = taps_of(of), inputs = (size_t)n_inputs, total = taps * inputs;
    if (n < LANES || total % TOGETHER) memset(panel, 0, rounded(total, TOGETHER) * LANES * sizeof *panel);
    if (of->by_inputs) {
        const uint8_t *from = of->weights + (size_t)first_input * (size_t)of->filters + (size_t)first;
        for (size_t k = 0; k < inputs; k++, from += of->filters) {
            tap *to = place(panel, k, 0);
            for (int m = 0; m < n; m++) to[m * TOGETHER] = (int8_t)(from[m] ^ sign);
        }
        return;
    }
    for (int m = 0; m < n; m++) {
        const uint8_t *from =
            of->weights + ((size_t)(first + m) * (size_t)of->channels + (size_t)first_input) * taps;
        for (size_t c = 0; c < inputs; c++) {
            for (size_t t = 0; t < taps; t++)
                *place(panel, t * inputs + c, (size_t)m) = (int8_t)(from[c * taps + t] ^ sign);
        }
    }
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
