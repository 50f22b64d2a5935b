// Planes of bytes to float32, for one processor: patched dictionaries (Zukowski et al., "Super-Scalar RAM-CPU
// Cache Compression", ICDE 2006), 256 numbers at a time, so that what is between lies in the nearest cache.
//
// Whatever the bytes are, they stand for some numbers: what is said to lie behind an end is not there.
#include "expansion.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { CODE_BYTES = BLOCK_NUMBERS / 8 };  // bytes of one bit of the codes of a block

// CODE_BYTES bytes, shifted as halves: masks take away what comes from the byte beside.
typedef uint16_t vector __attribute__((vector_size(CODE_BYTES)));

static inline vector looked_up(const uint8_t *dictionary, vector codes) {
#if defined(__x86_64__)
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)dictionary));
    return (vector)_mm256_shuffle_epi8(bytes, (__m256i)codes);
#else
    const uint8x16_t bytes = vld1q_u8(dictionary);
    uint8_t each[CODE_BYTES];
    memcpy(each, &codes, sizeof each);
    for (size_t i = 0; i < CODE_BYTES; i += 16) vst1q_u8(each + i, vqtbl1q_u8(bytes, vld1q_u8(each + i)));
    memcpy(&codes, each, sizeof each);
    return codes;
#endif
}

// Bit b of code 32 j + i is bit j of byte i of the b-th CODE_BYTES bytes. Called with known `bits`.
static inline __attribute__((always_inline)) void expand_codes(uint8_t *to, const uint8_t *codes, unsigned bits,
                                                               const uint8_t *dictionary) {
    vector parts[MAX_BITS];
    for (unsigned b = 0; b < bits; b++) memcpy(&parts[b], codes + b * CODE_BYTES, CODE_BYTES);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++) {
        vector code = {0};
#pragma GCC unroll 4
        for (unsigned b = 0; b < bits; b++) {
            const vector moved = j >= b ? parts[b] >> (j - b) : parts[b] << (b - j);
            code |= moved & (uint16_t)(0x0101u << b);
        }
        code = looked_up(dictionary, code);
        memcpy(to + j * CODE_BYTES, &code, CODE_BYTES);
    }
}

// Where the next block of a plane is, and what of it there is left.
struct plane {
    const uint8_t *next;
    const uint8_t *dictionary;
    const uint8_t *counts;
    const uint8_t *exceptions;
    size_t n_exceptions;
    unsigned bits;
    uint8_t block[BLOCK_NUMBERS];
};

// Returns the next 256 bytes.
static const uint8_t *next_bytes(struct plane *plane) {
    const uint8_t *from = plane->next;
    if (plane->bits == WHOLE_BITS) {
        plane->next += BLOCK_NUMBERS;
        return from;
    }
    plane->next += plane->bits * CODE_BYTES;
    switch (plane->bits) {
        case 0: memset(plane->block, plane->dictionary[0], sizeof plane->block); break;
        case 1: expand_codes(plane->block, from, 1, plane->dictionary); break;
        case 2: expand_codes(plane->block, from, 2, plane->dictionary); break;
        case 3: expand_codes(plane->block, from, 3, plane->dictionary); break;
        default: expand_codes(plane->block, from, 4, plane->dictionary);
    }
    const size_t count = *plane->counts++, n = count < plane->n_exceptions ? count : plane->n_exceptions;
    plane->n_exceptions -= n;
    for (const uint8_t *end = plane->exceptions + 2 * n; plane->exceptions < end; plane->exceptions += 2)
        plane->block[plane->exceptions[0]] = plane->exceptions[1];
    return plane->block;
}

// Bytes of numbers whose sign is last, after exponent and mantissa.
static inline void join_bytes(uint32_t *restrict to, const uint8_t *a, const uint8_t *b, const uint8_t *c,
                              const uint8_t *d) {
    for (size_t i = 0; i < BLOCK_NUMBERS; i++) {
        const uint32_t turned = (uint32_t)a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
        to[i] = turned >> 1 | turned << 31;
    }
}

static void next_numbers(uint32_t *to, struct plane *planes) {
    const uint8_t *bytes[N_PLANES];
    for (size_t i = 0; i < N_PLANES; i++) bytes[i] = next_bytes(&planes[i]);
    join_bytes(to, bytes[0], bytes[1], bytes[2], bytes[3]);
}

// Eight numbers: zero, or the next of `held`, of which eight may be read, where `mask` has a bit.
static inline void spread(uint32_t *restrict to, const uint32_t *restrict held, uint8_t mask) {
#if defined(__AVX512VL__)
    _mm256_storeu_si256((__m256i *)to, _mm256_maskz_expand_epi32(mask, _mm256_loadu_si256((const __m256i *)held)));
#else
    const uint64_t each = 0x0101010101010101u;
    const uint64_t apart = ((mask * each) & 0x8040201008040201u) + 0x7f7f7f7f7f7f7f7fu;
    const uint64_t bits = (apart >> 7) & each;
    const uint64_t before = bits * each - bits;  // in each byte, how many bits are before it
#if defined(__x86_64__)
    const __m256i all = _mm256_loadu_si256((const __m256i *)held);
    const __m256i places = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)before));
    const __m256i kept = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)(bits * 0xff)));
    _mm256_storeu_si256((__m256i *)to, _mm256_and_si256(_mm256_permutevar8x32_epi32(all, places), kept));
#else
    for (size_t i = 0; i < 8; i++)
        to[i] = held[before >> 8 * i & 0xff] & -(uint32_t)(bits >> 8 * i & 1);
#endif
#endif
}

// `mask` has a bit for each of n numbers, which are zero or the next one of the `blocks` in the planes.
static void expand_kept(uint32_t *to, const uint8_t *mask, size_t n, struct plane *planes, size_t blocks) {
    enum { GROUP = 8 };
    uint32_t held[GROUP + BLOCK_NUMBERS + GROUP] = {0};  // what is left of a block, the next one, what may be read
    size_t first = 0, end = 0;
    for (; n; n -= GROUP, mask++, to += GROUP) {
        const size_t own = (size_t)__builtin_popcount(*mask);
        if (end - first < own) {
            memmove(held, held + first, (end - first) * sizeof *held);
            end -= first, first = 0;
            if (blocks)
                blocks--, next_numbers(held + end, planes);
            else
                memset(held + end, 0, BLOCK_NUMBERS * sizeof *held);
            end += BLOCK_NUMBERS;
        }
        spread(to, held + first, *mask);
        first += own;
    }
}

static void NAMED(expand_planes)(uint32_t *to, const uint8_t *from, const struct stretch *stretch) {
    const size_t n = stretch->length / sizeof *to, kept = stretch->kept ? stretch->kept : n;
    const size_t blocks = kept / BLOCK_NUMBERS;
    const uint8_t *mask = from + N_PLANES * DICTIONARY_BYTES;
    struct plane planes[N_PLANES];
    const uint8_t *next = mask + (stretch->kept ? n / 8 : 0);
    for (size_t i = 0; i < N_PLANES; i++) {
        struct plane *plane = &planes[i];
        plane->bits = stretch->bits[i];
        plane->dictionary = from + i * DICTIONARY_BYTES;
        plane->next = next;
        plane->counts = next += blocks * plane->bits * CODE_BYTES;
        plane->exceptions = next += plane->bits == WHOLE_BITS ? 0 : blocks;
        next += 2 * (plane->n_exceptions = stretch->exceptions[i]);
    }
    if (stretch->kept)
        expand_kept(to, mask, n, planes, blocks);
    else
        for (size_t i = 0; i < blocks; i++, to += BLOCK_NUMBERS) next_numbers(to, planes);
}
