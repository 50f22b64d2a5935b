// Sums as bytes: each times the factor of its filter, rounded half to even.
#ifndef INTEGERS_ROUNDING_H
#define INTEGERS_ROUNDING_H

#include "arithmetic.h"

// What rounds sums of some filters: beside the factor of each, the zero point of the result.
struct rounding {
    const float *factors;
    float low, high;
    int32_t zero, flip;
};

// Sixteen sums as bytes. Of what is no number the lowest is made.
static inline void round_all(const int32_t *sums, const float *factors, const struct rounding *how, uint8_t *to) {
#if defined(__AVX512BW__)
    __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums)), _mm512_loadu_ps(factors));
    v = _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(how->low)), _mm512_set1_ps(how->high));
    __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(how->zero));
    whole = _mm512_xor_si512(whole, _mm512_set1_epi32(how->flip));
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(whole));
#elif defined(__AVX2__)
    __m256i whole[2];
    for (int i = 0; i < 2; i++) {
        const __m256i eight = _mm256_loadu_si256((const void *)(sums + i * LANES / 2));
        __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(eight), _mm256_loadu_ps(factors + i * LANES / 2));
        v = _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(how->low)), _mm256_set1_ps(how->high));
        whole[i] = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(how->zero));
        whole[i] = _mm256_xor_si256(whole[i], _mm256_set1_epi32(how->flip));
    }
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(whole[0], whole[1]), 0xd8);
    _mm_storeu_si128((void *)to,
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#else
    for (int m = 0; m < LANES; m++) {
        float v = (float)sums[m] * factors[m];
        v = v > how->low ? v : how->low;
        v = v < how->high ? v : how->high;
        to[m] = (uint8_t)(((int32_t)__builtin_rintf(v) + how->zero) ^ how->flip);
    }
#endif
}

// Writes `n` of sixteen sums as bytes.
static inline void round_sums(const int32_t *sums, const float *factors, const struct rounding *how, int n,
                              uint8_t *to) {
    if (n == LANES) {
        round_all(sums, factors, how, to);
        return;
    }
    uint8_t bytes[LANES];
    round_all(sums, factors, how, bytes);
    memcpy(to, bytes, (size_t)n);
}

#if defined(__AVX512BW__)
// Of dwords [4][4] of vectors of 16 bytes the same dwords of each together; it undoes itself.
static inline __m512i turned_dwords(__m512i v) {
    return _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), v);
}

// Sixteen sums of four pixels each, as bytes [4][LANES]. Saturation does what limits would; a number beyond
// int32 would become the lowest, so that there is a high one.
static inline __m512i four_rounded(const int32_t *sums, size_t stride, const float *factors,
                                   const struct rounding *how) {
    const __m512 by = _mm512_loadu_ps(factors), high = _mm512_set1_ps(how->high);
    const __m512i zero = _mm512_set1_epi16((short)how->zero);
    __m512i v[4];
    for (int i = 0; i < 4; i++) {
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + (size_t)i * stride));
        v[i] = _mm512_cvtps_epi32(_mm512_min_ps(high, _mm512_mul_ps(sum, by)));
    }
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), zero);
    const __m512i rest = _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), zero);
    const __m512i bytes = turned_dwords(_mm512_packus_epi16(low, rest));
    return _mm512_xor_si512(bytes, _mm512_set1_epi8((char)how->flip));
}
#endif

// Writes `filters` of sixteen sums of each of n pixels, `stride` bytes apart.
static inline void round_pixels(int n, const int32_t *sums, size_t sums_stride, const float *factors,
                                const struct rounding *how, int filters, uint8_t *to, size_t stride) {
#if defined(__AVX512BW__)
    const __mmask16 some = (__mmask16)((1u << filters) - 1);
    for (; n >= 4; n -= 4, sums += 4 * sums_stride, to += 4 * stride) {
        const __m512i bytes = four_rounded(sums, sums_stride, factors, how);
        if (stride == LANES && filters == LANES) {
            _mm512_storeu_si512(to, bytes);
            continue;
        }
        const __m128i each[4] = {_mm512_castsi512_si128(bytes), _mm512_extracti32x4_epi32(bytes, 1),
                                 _mm512_extracti32x4_epi32(bytes, 2), _mm512_extracti32x4_epi32(bytes, 3)};
        for (int i = 0; i < 4; i++) {
            if (filters == LANES) {
                _mm_storeu_si128((void *)(to + (size_t)i * stride), each[i]);
            } else {
                _mm_mask_storeu_epi8(to + (size_t)i * stride, some, each[i]);
            }
        }
    }
#endif
    for (int i = 0; i < n; i++)
        round_sums(sums + (size_t)i * sums_stride, factors, how, filters, to + (size_t)i * stride);
}

#endif
