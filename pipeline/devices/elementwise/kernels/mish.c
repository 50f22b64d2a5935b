// Mish: x tanh(log(1 + exp x)) = x m / (m + 2), where e = exp x and m = e (e + 2).
#include "exponential.h"

// Above 16 the factor is 1; below -128 the product is less than any number. What overflows is never made.
// Of 2^n at most 2^-100 is in e, where e + 2 is 2 already; the others come last, so that a subnormal result
// is rounded once.
static inline float mish_of(float x) {
    const float low = at_least(x, -128.0f);
    const struct exponential power = exponential(no_more(low, 16.0f));
    const int32_t near = greater(power.n, -100);
    const float e = power.m * power_of_two(near);
    const float m = fma_(e, e, 2.0f * e);
    return low * (m / (m + 2.0f)) * power_of_two(power.n - near);
}

// p: 1, or -1 where what is there is -x.
KERNEL(mish, mish_of(a[i] * p))
