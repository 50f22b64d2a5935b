// Tensor cores on the host: what tensor_core.cuh declares, by lanes that read each other.
//
// Lane l holds half a row of each 16x16 matrix: row l / 2, the columns from (l % 2) * 8 on. The sums
// are fused multiply-adds in ascending k; hardware rounds in its own way. As there, only kernels'
// barriers order reads and writes of shared memory.
#pragma once

#include <cmath>

#include "bits.h"
#include "block.h"

struct FactorFragment {
    float r[8];
};
struct SumFragment {
    float r[8];
};

// To nearest, ties to even.
static inline unsigned short to_half(float x) {
    const uint32_t all = host::bits_of<uint32_t>(x), size = all & 0x7fffffff;
    const uint32_t sign = all >> 16 & 0x8000;
    if (size > 0x7f800000) return static_cast<unsigned short>(sign | 0x7e00);
    if (size >= 0x477ff000) return static_cast<unsigned short>(sign | 0x7c00);  // from 65520 on
    if (size < 0x38800000) {
        // Below 2^-14 halves are multiples of 2^-24, as float32 is from 0.5 on.
        const float shifted = host::bits_of<float>(size) + 0.5f;
        return static_cast<unsigned short>(sign | (host::bits_of<uint32_t>(shifted) - 0x3f000000));
    }
    const uint32_t nearest = size + 0xfff + (size >> 13 & 1);
    return static_cast<unsigned short>(sign | ((nearest - (112u << 23)) >> 13));
}

namespace host {

static inline float from_half(unsigned short half) {
    const uint32_t sign = (half & 0x8000u) << 16, size = (half & 0x7fffu) << 13;
    const float value = bits_of<float>(size) * 0x1p112f;  // subnormal numbers too
    const uint32_t bits = size >= 0x0f800000 ? size | 0x7f800000 : bits_of<uint32_t>(value);
    return bits_of<float>(bits | sign);
}

static inline int fragment_offset(int stride) { return lane() / 2 * stride + lane() % 2 * 8; }

}  // namespace host

static inline void load_left(FactorFragment& f, const unsigned short* from, int stride) {
    host::check_aligned(from, 32, stride * 2);
    from += host::fragment_offset(stride);
    for (int i = 0; i < 8; ++i) f.r[i] = host::from_half(from[i]);
}

static inline void load_right(FactorFragment& f, const unsigned short* from, int stride) {
    load_left(f, from, stride);
}

static inline void store_sums(float* to, const SumFragment& d, int stride) {
    host::check_aligned(to, 32, stride * 4);
    memcpy(to + host::fragment_offset(stride), d.r, sizeof d.r);
}

static inline void multiply_add(SumFragment& d, const FactorFragment& a, const FactorFragment& b) {
    const FactorFragment pair[2] = {a, b};
    const uint64_t* shown = host::show(reinterpret_cast<uint64_t>(pair), __LINE__);
    const int row = host::lane() / 2, half = host::lane() % 2;
    for (int k = 0; k < 16; ++k) {
        const auto* left = reinterpret_cast<const FactorFragment*>(shown[row * 2 + k / 8]);
        const auto* right = reinterpret_cast<const FactorFragment*>(shown[k * 2 + half]) + 1;
        for (int j = 0; j < 8; ++j) d.r[j] = fmaf(left->r[k % 8], right->r[j], d.r[j]);
    }
    host::wait_for_warp(__LINE__);
}
