// The sum of what a layer makes and another tensor, in floats as ONNX Runtime has it.
#ifndef INTEGERS_ADDITION_H
#define INTEGERS_ADDITION_H

#include "integers.h"

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

static inline float value_of(uint8_t byte, int flip) { return flip ? (float)(int8_t)byte : (float)byte; }

// Adds another tensor's bytes to those of `to`.
static void add_other(const struct addition *by, const struct factors *with, const uint8_t *other, int n, uint8_t *to) {
    const float low = by->made.flip ? -128 : 0, high = low + 255;
    const uint8_t *first = by->over ? other : to, *second = by->over ? to : other;
    for (int c = 0; c < n; c++) {
        const float part = __builtin_fmaf(value_of(second[c], by->second.flip), with->second, with->start);
        float v = __builtin_fmaf(value_of(first[c], by->first.flip), with->first, part);
        v = v > low ? v : low;
        v = v < high ? v : high;
        to[c] = (uint8_t)(int32_t)__builtin_rintf(v);
    }
}

#endif
