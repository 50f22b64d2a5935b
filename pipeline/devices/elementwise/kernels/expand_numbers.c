// Numbers of 8 and 16 bits to float32, for one processor: each by one operation that is exact, or rounds once.
#include "expansion.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Numbers of 16 bits are all numbers of 32: subnormal ones, too, which integers would have to count out.
static void NAMED(expand_float16)(float *to, const uint16_t *from, size_t n) {
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < n; i++) {
#if defined(__x86_64__)
        to[i] = _cvtsh_ss(from[i]);
#else
        __fp16 number;
        memcpy(&number, from + i, sizeof number);
        to[i] = (float)number;
#endif
    }
}

static void NAMED(expand_bfloat16)(uint32_t *restrict to, const uint16_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = (uint32_t)from[i] << 16;
}

// `block` channels lie side by side. Called with a known one, so that the inner loop is a vector.
static inline __attribute__((always_inline)) void expand_blocks(float *restrict to, const int8_t *restrict from,
                                                                const float *restrict scales, size_t blocks,
                                                                size_t block, size_t rows) {
    for (size_t outer = 0; outer < blocks; outer++, scales += block)
        for (size_t row = 0; row < rows; row++, to += block, from += block)
            for (size_t i = 0; i < block; i++) to[i] = (float)from[i] * scales[i];
}

static void expand_rows(float *restrict to, const int8_t *restrict from, const float *restrict scales,
                        size_t channels, size_t rows) {
    for (size_t channel = 0; channel < channels; channel++, to += rows, from += rows) {
        const float scale = scales[channel];
        for (size_t i = 0; i < rows; i++) to[i] = (float)from[i] * scale;
    }
}

static void NAMED(expand_int8)(float *to, const int8_t *from, const float *scales, size_t channels,
                               size_t block, size_t n) {
    const size_t rows = n / channels, blocks = channels / block;
    switch (block) {
        case 1: expand_rows(to, from, scales, channels, rows); break;
        case 8: expand_blocks(to, from, scales, blocks, 8, rows); break;
        case 16: expand_blocks(to, from, scales, blocks, 16, rows); break;
        default: expand_blocks(to, from, scales, blocks, block, rows);
    }
}
