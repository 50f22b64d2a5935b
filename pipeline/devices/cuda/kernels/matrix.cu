// Fully connected layers, and products of matrices in general (product.cuh).

#include "product.cuh"

__device__ __forceinline__ float4 read_four(const float* from, int left, bool aligned) {
    if (aligned) return *reinterpret_cast<const float4*>(from);
    return make_float4(from[0], left > 1 ? from[1] : 0.0f, left > 2 ? from[2] : 0.0f,
                       left > 3 ? from[3] : 0.0f);
}

// Adds this lane's share of k: fours that are 32 fours apart.
template <int Images, bool Aligned>
__device__ __forceinline__ void dot_products(const float* const (&x)[Images], const float* w,
                                             int depth, float (&sums)[Images]) {
#pragma unroll 4
    for (int k = threadIdx.x % 32 * 4; k < depth; k += 128) {
        const float4 b = read_four(w + k, depth - k, Aligned);
#pragma unroll
        for (int i = 0; i < Images; ++i) {
            const float4 a = read_four(x[i] + k, depth - k, Aligned);
            sums[i] = fmaf(a.x, b.x, sums[i]);
            sums[i] = fmaf(a.y, b.y, sums[i]);
            sums[i] = fmaf(a.z, b.z, sums[i]);
            sums[i] = fmaf(a.w, b.w, sums[i]);
        }
    }
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, apart));
    }
    return x;
}

// y[n][m] = activation of scale * (sum over k of x[n][k] w[m][k]) + bias_scale * bias[m], bias null
// or [m]. A warp computes one m for Images numbers n, with weights read once: a lane adds its share
// of k in ascending order, then the lanes are added in a fixed tree. Nothing else reaches the bits.
// Blocks: four numbers m along x, Images numbers n along y.
template <int Images>
__device__ __forceinline__ void connect(const float* x, const float* w, float* y,
                                        const float* bias, int images, int depth, int outputs,
                                        float scale, float bias_scale, const Epilogue& epilogue) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= outputs) return;
    const int first = blockIdx.y * Images;
    const float* from[Images];
#pragma unroll
    for (int i = 0; i < Images; ++i) {
        // Images that do not exist repeat the last one, and are not written.
        from[i] = x + static_cast<size_t>(min(first + i, images - 1)) * depth;
    }
    w += static_cast<size_t>(row) * depth;
    const bool aligned = depth % 4 == 0 && reinterpret_cast<size_t>(w) % 16 == 0 &&
                         reinterpret_cast<size_t>(x) % 16 == 0;
    float sums[Images] = {};
    if (aligned) {
        dot_products<Images, true>(from, w, depth, sums);
    } else {
        dot_products<Images, false>(from, w, depth, sums);
    }
#pragma unroll
    for (int i = 0; i < Images; ++i) sums[i] = __fmul_rn(scale, sum_of_warp(sums[i]));
    if (threadIdx.x % 32 != 0) return;
    if (bias != nullptr) {
#pragma unroll
        for (int i = 0; i < Images; ++i) sums[i] = fmaf(bias_scale, bias[row], sums[i]);
    }
    activate_all(sums, epilogue);
#pragma unroll
    for (int i = 0; i < Images; ++i) {
        if (first + i < images) y[static_cast<size_t>(first + i) * outputs + row] = sums[i];
    }
}

#define FULLY_CONNECTED(name, at_once, blocks)                                                    \
    extern "C" __global__ void __launch_bounds__(128, blocks) name(                               \
        const float* __restrict__ x, const float* __restrict__ w, float* y, const float* bias,    \
        int images, int depth, int outputs, float scale, float bias_scale, int activation,        \
        float alpha, float beta) {                                                                \
        connect<at_once>(x, w, y, bias, images, depth, outputs, scale, bias_scale,                \
                         {nullptr, nullptr, 0, activation, alpha, beta});                         \
    }

FULLY_CONNECTED(fully_connected_1, 1, 8)
FULLY_CONNECTED(fully_connected_4, 4, 4)

// n: as it is named, t: transposed; first A, then B.
#define MULTIPLY(name, across_a, across_b)                                                       \
    extern "C" __global__ void __launch_bounds__(ProductTile::threads, 3)                        \
        name(const float* __restrict__ a, const float* __restrict__ b, float* y,                 \
             const float* addend, Product shape, float scale, float addend_scale,                \
             int activation, float alpha, float beta) {                                          \
        const Epilogue epilogue = {nullptr, nullptr, 0, activation, alpha, beta};                \
        multiply<across_a, across_b>(a, b, y, shape,                                             \
                                     {addend, shape.addend_row_stride,                           \
                                      shape.addend_column_stride, scale, addend_scale, epilogue}); \
    }

MULTIPLY(multiply_nn, false, true)
MULTIPLY(multiply_nt, false, false)
MULTIPLY(multiply_tn, true, true)
MULTIPLY(multiply_tt, true, false)
