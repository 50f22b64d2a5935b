// The sum of what a layer makes and another tensor, in floats as ONNX Runtime has it.
#ifndef INTEGERS_ADDITION_H
#define INTEGERS_ADDITION_H

#include "arithmetic.h"

// What a sum of two bytes is computed with. One of the two products is not rounded, as in ONNX Runtime.
struct factors {
    float first, second, start;
};

static float signed_zero(const struct scaled *of) { return of->flip ? (float)(int8_t)*of->zero : (float)*of->zero; }

static struct factors factors_of(const struct addition *of) {
    const float first = *of->first.scale / *of->made.scale, second = *of->second.scale / *of->made.scale;
    const float part = second * signed_zero(&of->second);
    return (struct factors){first, second,
                            signed_zero(&of->made) - __builtin_fmaf(first, signed_zero(&of->first), part)};
}

static inline float value_of(uint8_t byte, int flip) { return (float)((byte ^ flip) - flip); }

// Sixteen sums, of bytes that may be those of `to`.
static inline void add_sixteen(const struct addition *by, const struct factors *with, const uint8_t *first,
                               const uint8_t *second, uint8_t *to) {
    const float low = by->made.flip ? -128 : 0, high = low + 255;
    const int first_flip = by->first.flip, second_flip = by->second.flip;
    uint8_t made[LANES];
    for (int c = 0; c < LANES; c++) {
        const float part = __builtin_fmaf(value_of(second[c], second_flip), with->second, with->start);
        float v = __builtin_fmaf(value_of(first[c], first_flip), with->first, part);
        v = v > low ? v : low;
        v = v < high ? v : high;
        made[c] = (uint8_t)(int32_t)__builtin_rintf(v);
    }
    memcpy(to, made, sizeof made);
}

// Adds n of sixteen bytes of another tensor to those of `to`.
static inline void add_other(const struct addition *by, const struct factors *with, const uint8_t *other, size_t n,
                             uint8_t *to) {
    const uint8_t *first = by->over ? other : to, *second = by->over ? to : other;
    if (n == LANES) {
        add_sixteen(by, with, first, second, to);
        return;
    }
    uint8_t some[3][LANES] = {{0}};
    memcpy(some[0], first, n);
    memcpy(some[1], second, n);
    add_sixteen(by, with, some[0], some[1], some[2]);
    memcpy(to, some[2], n);
}

#endif
