// One processor's build of the kernels: target.c includes the families once for each, under other names.
//
// Every number is made by single operations that IEEE 754 rounds correctly (fma, not contraction): so it has
// the same bits in a vector and behind the last whole one, on every processor and however threads divide it.
#ifndef ELEMENTWISE_TARGET_H
#define ELEMENTWISE_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define JOINED(name, target) name##_##target
#define EXPANDED(name, target) JOINED(name, target)
#define NAMED(name) EXPANDED(name, TARGET)

// What a kernel writes may be what it reads, at the same place: no element depends on another one.
#if defined(__clang__)
#define EACH_ALONE _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH_ALONE _Pragma("GCC ivdep")
#endif

// Arguments of a kernel: n elements of a (and b) to `to`, with the parameters p and q of its operator.
#define ARGUMENTS float *to, const float *a, const float *b, size_t n, float p, float q

#define KERNEL(name, expression)                                   \
    static void NAMED(name)(ARGUMENTS) {                           \
        (void)b, (void)p, (void)q;                                 \
        EACH_ALONE for (size_t i = 0; i < n; i++) to[i] = expression; \
    }

static inline float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

static inline int32_t bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float of_bits(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Comparisons with NaN are false: it stays.
static inline float at_least(float x, float least) { return x < least ? least : x; }
static inline float at_most(float x, float most) { return x > most ? most : x; }

static inline int32_t lesser(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t greater(int32_t a, int32_t b) { return a > b ? a : b; }

// The same for most > 0 and least < 0 by one operation on bits; NaN is lost.
static inline float no_more(float x, float most) { return of_bits(lesser(bits_of(x), bits_of(most))); }
static inline float no_less(float x, float least) {
    const uint32_t bits = (uint32_t)bits_of(x), bound = (uint32_t)bits_of(least);
    return of_bits((int32_t)(bits < bound ? bits : bound));
}

static inline float magnitude(float x) { return of_bits(bits_of(x) & 0x7fffffff); }
static inline float with_sign(float x, float sign) {
    return of_bits((bits_of(x) & 0x7fffffff) | (bits_of(sign) & (int32_t)0x80000000));
}

#endif
