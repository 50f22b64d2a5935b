// CUDA C++ for the host: as much of the language and of its library as our kernels use, to run them
// on one core. What is missing here, a new kernel may add.
//
// The words of the language are here, threads in fibers.h, barriers and warps in block.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "bits.h"
#include "block.h"
#include "tensor_core_host.h"

#define HOST_BUILD 1

#define __global__
#define __device__
#define __shared__ static  // one block runs at a time
#define __forceinline__ inline
#define __launch_bounds__(...)
// __restrict__ is a word of g++, too.

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned int x, y; };

static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }

template <class T> static inline T __ldg(const T* address) { return *address; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

static inline float __int_as_float(int x) { return host::bits_of<float>(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) {
    return static_cast<unsigned int>((static_cast<uint64_t>(a) * b) >> 32);
}
