// Arithmetic of two tensors, or of one and a number p. Each is rounded once, as ONNX Runtime does.
#include "target.h"

KERNEL(add, a[i] + b[i])
KERNEL(subtract, a[i] - b[i])
KERNEL(multiply, a[i] * b[i])
KERNEL(divide, a[i] / b[i])
KERNEL(add_number, a[i] + p)
KERNEL(multiply_number, a[i] * p)
KERNEL(divide_number, a[i] / p)
KERNEL(negative, -a[i])
KERNEL(copy, a[i])
