// Operators with straight lines: what is below, between and above their bounds. NaN stays NaN.
#include "target.h"

// x (x + 3) / 6 between -3 and 3: exact where it is small.
static inline float hard_swish_of(float x) {
    const float low = at_least(x, -3.0f);
    return low * (at_most(low + 3.0f, 6.0f) * 0.166666667f);
}

KERNEL(clip, at_most(at_least(a[i], p), q))
KERNEL(leaky_relu, a[i] < 0.0f ? a[i] * p : a[i])
KERNEL(hard_sigmoid, at_most(at_least(fma_(a[i], p, q), 0.0f), 1.0f))
KERNEL(hard_swish, hard_swish_of(a[i]))
