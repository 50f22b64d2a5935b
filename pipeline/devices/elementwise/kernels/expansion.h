// Stored weights to float32: stretches of memory, each in one encoding (models/packs/storing.py).
#ifndef ELEMENTWISE_EXPANSION_H
#define ELEMENTWISE_EXPANSION_H

#include "interface.h"

struct expansions {
    void (*float16)(float *to, const uint16_t *from, size_t n);
    void (*bfloat16)(uint32_t *to, const uint16_t *from, size_t n);
    void (*int8)(float *to, const int8_t *from, const float *scales, size_t channels, size_t block, size_t n);
    void (*planes)(uint32_t *to, const uint8_t *from, const struct stretch *stretch);
};

#endif
