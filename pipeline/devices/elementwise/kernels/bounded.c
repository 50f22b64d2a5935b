// Operators without exponentials, by what is below, between and above their bounds. NaN stays NaN.
#include "target.h"

// x (x + 3) / 6 between -3 and 3: exact where it is small.
static inline float hard_swish_of(float x) {
    const float low = at_least(x, -3.0f);
    return low * (at_most(low + 3.0f, 6.0f) * 0.166666667f);
}

// x / (1 + |x|), whose limits are -1 and 1.
static inline float softsign_of(float x) {
    const float within = at_most(at_least(x, -1e30f), 1e30f);
    return within / (1.0f + magnitude(within));
}

KERNEL(softsign, softsign_of(a[i]))
KERNEL(clip, at_most(at_least(a[i], p), q))
KERNEL(leaky_relu, a[i] < 0.0f ? a[i] * p : a[i])
KERNEL(hard_sigmoid, at_most(at_least(fma_(a[i], p, q), 0.0f), 1.0f))
KERNEL(hard_swish, hard_swish_of(a[i]))
