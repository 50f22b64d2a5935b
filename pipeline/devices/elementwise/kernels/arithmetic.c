// Arithmetic of two tensors, or of one and a number p. Each is rounded once, as ONNX Runtime does.
#include "target.h"

// Of a NaN and anything else it is the NaN.
static inline float larger_of(float x, float y) { return x >= y || x != x ? x : y; }
static inline float smaller_of(float x, float y) { return x <= y || x != x ? x : y; }

// C's fmodf without its library. The largest multiple of y comes off x in parts of 22 bits, each exactly: a
// rounded quotient is one too large at most.
static inline float modulo_of(float x, float y) {
    const float least = magnitude(y);
    float rest = magnitude(x), part = least;
    if (rest < least) return x;
    if (!(least > 0 && rest - rest == 0)) return x * y / (x * y);  // NaN
    while (part * 0x1p22f <= rest) part *= 0x1p22f;
    for (; part >= least; part *= 0x1p-22f) {
        rest = fma_(-__builtin_floorf(rest / part), part, rest);
        rest += rest < 0 ? part : 0;
    }
    return with_sign(rest, x);
}

KERNEL(add, a[i] + b[i])
KERNEL(subtract, a[i] - b[i])
KERNEL(multiply, a[i] * b[i])
KERNEL(divide, a[i] / b[i])
KERNEL(modulo, modulo_of(a[i], b[i]))
KERNEL(larger, larger_of(a[i], b[i]))
KERNEL(smaller, smaller_of(a[i], b[i]))
KERNEL(add_number, a[i] + p)
KERNEL(multiply_number, a[i] * p)
KERNEL(divide_number, a[i] / p)
KERNEL(modulo_number, modulo_of(a[i], p))
KERNEL(larger_number, larger_of(a[i], p))
KERNEL(smaller_number, smaller_of(a[i], p))
KERNEL(negative, -a[i])
KERNEL(copy, a[i])
