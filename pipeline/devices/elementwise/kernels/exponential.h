// exp x as m 2^n, so that what is made of it is rounded once where it is subnormal.
#ifndef ELEMENTWISE_EXPONENTIAL_H
#define ELEMENTWISE_EXPONENTIAL_H

#include "target.h"

#define SHIFT 12582912.0f  // 1.5 * 2^23: what is added to it becomes an integer

struct exponential {
    float m;  // 0.7 to 1.42
    int32_t n;
};

// exp r - 1, |r| <= ln 2 / 2. The polynomial is a minimax one (relative 3e-9) for (exp r - 1 - r) / r^2.
static inline float beyond_one(float r) {
    float series = 0.00138145383f;
    series = fma_(series, r, 0.00836874545f);
    series = fma_(series, r, 0.041668389f);
    series = fma_(series, r, 0.166665211f);
    series = fma_(series, r, 0.49999994f);
    return fma_(series * r, r, r);
}

// exp (r + n ln 2) by what stays of the exponent, |r| <= ln 2 / 2, and by n + 1.5 * 2^23.
static inline struct exponential exponential_of_parts(float r, float shifted) {
    const struct exponential result = {
        beyond_one(r) + 1.0f,
        bits_of(shifted) - bits_of(SHIFT),
    };
    return result;
}

static inline float shifted_exponent(float x) { return fma_(x, 1.44269504f, SHIFT); }

// x - n ln 2, with ln 2 in two parts.
static inline float remainder_of(float x, float shifted) {
    const float n = shifted - SHIFT;
    return fma_(n, -1.42860677e-6f, fma_(n, -0.693145752f, x));
}

// exp x, |x| <= 200.
static inline struct exponential exponential(float x) {
    const float shifted = shifted_exponent(x);
    return exponential_of_parts(remainder_of(x, shifted), shifted);
}

// exp (x + rest), where rest is far smaller than x.
static inline struct exponential exponential_with(float x, float rest) {
    const float shifted = shifted_exponent(x);
    return exponential_of_parts(remainder_of(x, shifted) + rest, shifted);
}

// 2^n, -126 <= n <= 127.
static inline float power_of_two(int32_t n) { return of_bits((n + 127) * (1 << 23)); }

// x 2^n, -250 <= n <= 250: in two steps, since 2^n may be no normal number. The first one is exact where x is
// about 1.
static inline float scaled(float x, int32_t n) {
    const int32_t half = n >> 1;
    return x * power_of_two(half) * power_of_two(n - half);
}

// exp x - 1, -80 <= x <= 88, without cancelling near zero.
static inline float exponential_less_one(float x) {
    const float shifted = shifted_exponent(x);
    const float power = power_of_two(bits_of(shifted) - bits_of(SHIFT));
    return fma_(beyond_one(remainder_of(x, shifted)), power, power - 1.0f);
}

static inline float value_of(struct exponential e) { return scaled(e.m, e.n); }

#endif
