// A chain: steps on elements that follow each other, and the tensors that they read and write.
//
// pipeline/devices/elementwise/library.py has the same structures and limits (limits.c); programs.py reads
// OPERATORS here.
#ifndef ELEMENTWISE_CHAIN_H
#define ELEMENTWISE_CHAIN_H

#include <stddef.h>
#include <stdint.h>

// By the names of their kernels: a kind of models/network/activations.py each; ..._number: of one value and p.
#define OPERATORS(EACH)       \
    EACH(copy)                \
    EACH(add)                 \
    EACH(subtract)            \
    EACH(multiply)            \
    EACH(divide)              \
    EACH(modulo)              \
    EACH(larger)              \
    EACH(smaller)             \
    EACH(add_number)          \
    EACH(multiply_number)     \
    EACH(divide_number)       \
    EACH(modulo_number)       \
    EACH(larger_number)       \
    EACH(smaller_number)      \
    EACH(negative)            \
    EACH(clip)                \
    EACH(leaky_relu)          \
    EACH(hard_sigmoid)        \
    EACH(hard_swish)          \
    EACH(sigmoid)             \
    EACH(silu)                \
    EACH(softsign)            \
    EACH(tanh)                \
    EACH(mish)                \
    EACH(celu)                \
    EACH(erf)                 \
    EACH(gelu)
#define ONE(name) +1
enum { N_OPERATORS = OPERATORS(ONE) };

typedef void kernel(float *to, const float *a, const float *b, size_t n, float p, float q);

// Tensors of a chain, and blocks of memory in between; axes of a node. A chain has any number of steps.
enum { MOST_TENSORS = 12, MOST_BLOCKS = 6, MOST_AXES = 8 };
// Elements from which on several threads compute a chain.
enum { WORTH_SHARING = 16 << 10 };

// One tensor of a chain: as many elements as the chain has, or one for each channel: element i of the chain
// takes number (i / plane) * width + i % width of it. `plane` 0: the first kind.
struct tensor {
    float *data;
    size_t plane;
    size_t width;
};

// Places below MOST_TENSORS are tensors, the others blocks of memory that is in between.
struct step {
    int32_t operator;
    int32_t to;
    int32_t a;
    int32_t b;
    float p;
    float q;
};

struct chain {
    size_t n_elements;
    int32_t n_steps;
    const struct step *steps;
    struct tensor tensors[MOST_TENSORS];
};

// Computes elements [first, end) of a chain, block by block: what is in between stays in the nearest cache.
void compute(const struct chain *chain, size_t first, size_t end);

#endif
