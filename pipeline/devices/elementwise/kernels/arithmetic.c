// Arithmetic of two tensors, or of one and a number p. Each is rounded once, as ONNX Runtime does.
#include "target.h"

// Of a NaN and anything else it is the NaN.
static inline float larger_of(float x, float y) { return x >= y || x != x ? x : y; }
static inline float smaller_of(float x, float y) { return x <= y || x != x ? x : y; }

KERNEL(add, a[i] + b[i])
KERNEL(subtract, a[i] - b[i])
KERNEL(multiply, a[i] * b[i])
KERNEL(divide, a[i] / b[i])
KERNEL(larger, larger_of(a[i], b[i]))
KERNEL(smaller, smaller_of(a[i], b[i]))
KERNEL(add_number, a[i] + p)
KERNEL(multiply_number, a[i] * p)
KERNEL(divide_number, a[i] / p)
KERNEL(larger_number, larger_of(a[i], p))
KERNEL(smaller_number, smaller_of(a[i], p))
KERNEL(negative, -a[i])
KERNEL(copy, a[i])
