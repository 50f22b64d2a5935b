// A chain: steps on elements that follow each other, and the tensors that they read and write.
//
// pipeline/devices/elementwise/library.py has the same structures, programs.py OPERATORS in the same order.
#ifndef ELEMENTWISE_CHAIN_H
#define ELEMENTWISE_CHAIN_H

#include <stddef.h>
#include <stdint.h>

enum operator {
    COPY,
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    ADD_NUMBER,
    MULTIPLY_NUMBER,
    DIVIDE_NUMBER,
    NEGATIVE,
    CLIP,
    LEAKY_RELU,
    HARD_SIGMOID,
    HARD_SWISH,
    SIGMOID,
    SILU,
    TANH,
    MISH,
    ERF,
    GELU,
    N_OPERATORS,
};

typedef void kernel(float *to, const float *a, const float *b, size_t n, float p, float q);

enum { MOST_TENSORS = 12, MOST_BLOCKS = 6 };

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
    int32_t n_threads;
    const struct step *steps;
    struct tensor tensors[MOST_TENSORS];
};

// Computes elements [first, end) of a chain, block by block: what is in between stays in the nearest cache.
void compute(const struct chain *chain, size_t first, size_t end);

#endif
