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

enum { N_PLANES = 4, BLOCK_NUMBERS = 256, DICTIONARY_BYTES = 16, MOST_BITS = 4 };

// `length` bytes at `to` of the target, made of what is at `from` of the source. Of INT8 these are numbers
// [channels / block][..][block], with `scales` at another place of the source. Of PLANES whole blocks of
// numbers: `bits` of a code (8: the byte itself) and `exceptions` of each plane; `kept` of the numbers, those
// that are not zero (0: all).
struct stretch {
    int32_t encoding;
    uint32_t block;
    size_t channels;
    size_t to;
    size_t length;
    size_t from;
    size_t scales;
    size_t kept;
    size_t exceptions[N_PLANES];
    uint8_t bits[N_PLANES];
};

struct expansions {
    void (*float16)(float *to, const uint16_t *from, size_t n);
    void (*bfloat16)(uint32_t *to, const uint16_t *from, size_t n);
    void (*int8)(float *to, const int8_t *from, const float *scales, size_t channels, size_t block, size_t n);
    void (*planes)(uint32_t *to, const uint8_t *from, const struct stretch *stretch);
};

#endif
