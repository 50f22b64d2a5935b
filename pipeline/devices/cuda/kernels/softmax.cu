// Softmax and its logarithm over the middle axis of [outer, length, inner].

#include "infinity.cuh"
#include "reduction.cuh"

// One block a row; inner is 1. The number of threads is a power of two.
extern "C" __global__ void softmax_rows(const float *x, float *y, int length, int logarithm) {
    __shared__ float shared[REDUCTION_THREADS];
    x += (long long)blockIdx.x * length;
    y += (long long)blockIdx.x * length;
    float largest = -POSITIVE_INFINITY;
    for (int i = threadIdx.x; i < length; i += blockDim.x) largest = fmaxf(largest, x[i]);
    largest = reduce_block<Largest>(largest, shared);
    float total = 0.0f;
    for (int i = threadIdx.x; i < length; i += blockDim.x) total += expf(x[i] - largest);
    total = reduce_block<Sum>(total, shared);
    const float factor = 1.0f / total, shift = logf(total);
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
        const float power = x[i] - largest;
        y[i] = logarithm ? power - shift : expf(power) * factor;
    }
}

// One thread a column; neighbours read neighbouring addresses.
extern "C" __global__ void softmax_columns(
    const float *x, float *y, unsigned columns, int length, int inner, int logarithm) {
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const long long first = (long long)(column / inner) * length * inner + column % inner;
    x += first;
    y += first;
    float largest = -POSITIVE_INFINITY;
    for (int i = 0; i < length; ++i) largest = fmaxf(largest, x[i * inner]);
    float total = 0.0f;
    for (int i = 0; i < length; ++i) total += expf(x[i * inner] - largest);
    const float factor = 1.0f / total, shift = logf(total);
    for (int i = 0; i < length; ++i) {
        const float power = x[i * inner] - largest;
        y[i * inner] = logarithm ? power - shift : expf(power) * factor;
    }
}
