// Stored weights to float32: stretches of memory, each in one encoding (models/packs/storing.py).
//
// pipeline/devices/expansion.py has the same structure, and the encodings in the same order.
#ifndef ELEMENTWISE_EXPANSION_H
#define ELEMENTWISE_EXPANSION_H

#include <stddef.h>
#include <stdint.h>

enum encoding {
    ZERO,
    BYTES,
    FLOAT16,
    BFLOAT16,
    INT8,
    PLANES,
    N_ENCODINGS,
};

enum { N_PLANES = 4 };

// `length` bytes at `to` of the target. Of FLOAT16, BFLOAT16 and BYTES they are made of what is at `from` of
// the source. Of INT8 of numbers there, [channels / block][..][block], and of `scales` at another place of
// the source. Of PLANES of `planes`, which lie anywhere.
struct stretch {
    int32_t encoding;
    uint32_t block;
    size_t channels;
    size_t to;
    size_t length;
    size_t from;
    size_t scales;
    const uint8_t *planes[N_PLANES];
};

struct expansions {
    void (*float16)(float *to, const uint16_t *from, size_t n);
    void (*bfloat16)(uint32_t *to, const uint16_t *from, size_t n);
    void (*int8)(float *to, const int8_t *from, const float *scales, size_t channels, size_t block, size_t n);
    void (*planes)(uint32_t *to, const uint8_t *const *planes, size_t n);
};

#endif
