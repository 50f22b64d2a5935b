// All kernels for one processor (-DTARGET=avx2), and their tables.
#include "chain.h"
#include "target.h"

#include "arithmetic.c"
#include "attention.c"
#include "bounded.c"
#include "error_function.c"
#include "expand_numbers.c"
#include "expand_planes.c"
#include "hyperbolic.c"
#include "logistic.c"
#include "mish.c"

#define KERNEL_OF(operator) NAMED(operator),
kernel *const NAMED(kernels)[N_OPERATORS] = {OPERATORS(KERNEL_OF)};

const struct expansions NAMED(expansions) = {
    .float16 = NAMED(expand_float16),
    .bfloat16 = NAMED(expand_bfloat16),
    .int8 = NAMED(expand_int8),
    .planes = NAMED(expand_planes),
};
