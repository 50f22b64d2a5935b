// Mish: x tanh(log(1 + exp x)) = x m / (m + 2), where e = exp x and m = e (e + 2).
#include "exponential.h"

// Above 16 the factor is 1; below -128 the product is less than any number. What overflows is never made,
// and the power of two comes last.
static inline float mish_of(float x) {
    const float low = at_least(x, -128.0f);
    const struct exponential power = exponential(at_most(low, 16.0f), 0.0f);
    const float e = value_of(power);
    const float factor = fma_(power.m, e, 2.0f * power.m) / fma_(e, e + 2.0f, 2.0f);
    return scaled(low * factor, power.n);
}

// p: 1, or -1 where what is there is -x.
KERNEL(mish, mish_of(a[i] * p))
