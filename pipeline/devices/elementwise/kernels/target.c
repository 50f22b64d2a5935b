// All kernels for one processor (-DTARGET=avx2), and their tables: operators in the order of `enum operator`.
#include "chain.h"
#include "target.h"

#include "arithmetic.c"
#include "bounded.c"
#include "error_function.c"
#include "expand_numbers.c"
#include "expand_planes.c"
#include "hyperbolic.c"
#include "logistic.c"
#include "mish.c"

kernel *const NAMED(kernels)[N_OPERATORS] = {
    [COPY] = NAMED(copy),
    [ADD] = NAMED(add),
    [SUBTRACT] = NAMED(subtract),
    [MULTIPLY] = NAMED(multiply),
    [DIVIDE] = NAMED(divide),
    [ADD_NUMBER] = NAMED(add_number),
    [MULTIPLY_NUMBER] = NAMED(multiply_number),
    [DIVIDE_NUMBER] = NAMED(divide_number),
    [NEGATIVE] = NAMED(negative),
    [CLIP] = NAMED(clip),
    [LEAKY_RELU] = NAMED(leaky_relu),
    [HARD_SIGMOID] = NAMED(hard_sigmoid),
    [HARD_SWISH] = NAMED(hard_swish),
    [SIGMOID] = NAMED(sigmoid),
    [SILU] = NAMED(silu),
    [TANH] = NAMED(tanh),
    [MISH] = NAMED(mish),
    [ERF] = NAMED(erf),
    [GELU] = NAMED(gelu),
};

const struct expansions NAMED(expansions) = {
    .float16 = NAMED(expand_float16),
    .bfloat16 = NAMED(expand_bfloat16),
    .int8 = NAMED(expand_int8),
    .planes = NAMED(expand_planes),
};
