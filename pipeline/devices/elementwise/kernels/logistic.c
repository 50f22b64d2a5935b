// Sigmoid and SiLU: 1 / (1 + exp -x), and x times that.
#include "exponential.h"

// 1 / (1 + exp -(x + rest)), times `by`. With exp -|x| nothing overflows; where x is negative the result is
// by exp x / (1 + exp x), and the power of two comes last.
static inline float logistic_times(float by, float x, float rest) {
    const float bounded = at_most(at_least(x, -150.0f), 150.0f);
    const float away = x > 0.0f ? -bounded : bounded;
    const struct exponential e = exponential(away, x > 0.0f ? -rest : rest);
    const float below = 1.0f + value_of(e);
    const float above = x > 0.0f ? by : by * e.m;
    return scaled(above / below, x > 0.0f ? 0 : e.n);
}

// x sigmoid(alpha x): far below it is -0 as its limit, also of -infinity. What alpha x loses by rounding
// counts, as the exponent of something.
static inline float swish(float x, float alpha) {
    const float inner = alpha * x;
    const float rest = magnitude(inner) < 150.0f ? fma_(alpha, x, -inner) : 0.0f;
    const float by = inner < -150.0f ? with_sign(at_most(magnitude(x), 1e15f), x) : x;
    return logistic_times(by, inner, rest);
}

KERNEL(sigmoid, logistic_times(1.0f, a[i], 0.0f))
KERNEL(silu, swish(a[i], p))
