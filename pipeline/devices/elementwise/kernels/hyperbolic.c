// What approaches its limits by exponentials. tanh: near zero a polynomial, elsewhere 1 - 2 / (exp 2x + 1).
#include "exponential.h"

static inline float tanh_of(float x) {
    const float size = magnitude(x);
    const float square = x * x;
    // (tanh x / x - 1) / x^2 for |x| < 0.626: relative 4e-9 of the whole.
    float series = -0.00569737935f;
    series = fma_(series, square, 0.0206325427f);
    series = fma_(series, square, -0.0537377968f);
    series = fma_(series, square, 0.133314207f);
    series = fma_(series, square, -0.333332807f);
    const float near = fma_(series * square, size, size);
    const float e = value_of(exponential(at_most(size, 20.0f) * 2.0f));
    const float far = 1.0f - 2.0f / (e + 1.0f);
    return with_sign(size < 0.625f ? near : far, x);
}

KERNEL(tanh, tanh_of(a[i]))

// With alpha below zero it grows until exp would be too large for a float.
static inline float celu_of(float x, float alpha) {
    return alpha * exponential_less_one(at_most(at_least(x / alpha, -80.0f), 88.0f));
}

// p: minus the limit.
KERNEL(celu, a[i] < 0.0f ? celu_of(a[i], p) : a[i])
