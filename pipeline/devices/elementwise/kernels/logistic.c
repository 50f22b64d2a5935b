// Sigmoid and SiLU: 1 / (1 + exp -x), and x times that.
#include "exponential.h"

// `by` / (1 + exp x) of exp x as m 2^n, n >= -126. Of 2^n at most 2^100 is divided by, where 1 is nothing
// beside it; the others come last, so that a subnormal result is rounded once.
static inline float over_one_and(struct exponential power, float by) {
    const int32_t near = lesser(power.n, 100);
    return by / fma_(power.m, power_of_two(near), 1.0f) * power_of_two(near - power.n);
}

// -x where its exponential is needed: above 87 the result is 1, and below -150 less than any number. NaN is
// lost: it comes by what is divided.
static inline float away(float x) { return -no_less(no_more(x, 87.0f), -150.0f); }

static inline float sigmoid_of(float x) {
    return over_one_and(exponential(away(x)), x != x ? x : 1.0f);
}

// Far below it is -0 as its limit, also of -infinity.
static inline float silu_of(float x) {
    return over_one_and(exponential(away(x)), at_least(x, -1e15f));
}

// x sigmoid(alpha x). What alpha x loses by rounding counts, as the exponent of something.
static inline float swish(float x, float alpha) {
    const float inner = alpha * x;
    const float rest = magnitude(inner) < 150.0f ? fma_(alpha, x, -inner) : 0.0f;
    const float by = inner < -150.0f ? with_sign(at_most(magnitude(x), 1e15f), x) : x;
    return over_one_and(exponential_with(away(inner), -rest), by);
}

KERNEL(sigmoid, sigmoid_of(a[i]))
KERNEL(silu_one, silu_of(a[i]))
KERNEL(silu_any, swish(a[i], p))

static void NAMED(silu)(ARGUMENTS) { (p == 1.0f ? NAMED(silu_one) : NAMED(silu_any))(to, a, b, n, p, q); }
