// Expands stored weights, stretch by stretch: a span is some, a read has many.
#include "expansion.h"

#include <string.h>

#include "processors.h"

static void expand(const struct stretch *stretch, const uint8_t *source, uint8_t *target) {
    const uint8_t *from = source + stretch->start;
    void *to = target + stretch->to;
    const size_t numbers = stretch->length / sizeof(float);
    switch (stretch->encoding) {
        case ZERO: memset(to, 0, stretch->length); break;
        case BYTES: memcpy(to, from, stretch->length); break;
        case FLOAT16: expansions->float16(to, (const uint16_t *)from, numbers); break;
        case BFLOAT16: expansions->bfloat16(to, (const uint16_t *)from, numbers); break;
        case INT8:
            expansions->int8(to, (const int8_t *)from, (const float *)(source + stretch->scales),
                             stretch->channels, stretch->block, numbers);
            break;
        case PLANES: expansions->planes(to, from, stretch); break;
        default: break;
    }
}

void elementwise_expand(const struct stretch *stretches, size_t count, const uint8_t *source, uint8_t *target) {
    for (size_t i = 0; i < count; i++) expand(&stretches[i], source, target);
}
