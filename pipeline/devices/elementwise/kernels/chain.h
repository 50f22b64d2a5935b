// Chains, computed block by block, and the kernels that they are made of.
#ifndef ELEMENTWISE_CHAIN_H
#define ELEMENTWISE_CHAIN_H

#include "interface.h"

typedef void kernel(float *to, const float *a, const float *b, size_t n, float p, float q);

// Computes elements [first, end) of a chain, block by block: what is in between stays in the nearest cache.
void compute(const struct chain *chain, size_t first, size_t end);

#endif
