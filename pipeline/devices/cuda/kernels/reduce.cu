// Many numbers to one, over any axes.

#include "infinity.cuh"
#include "interface.cuh"
#include "reduction.cuh"
#include "strides.cuh"

__device__ __forceinline__ long long offset(
    unsigned index, int rank, const int (&sizes)[MAX_RANK], const int (&strides)[MAX_RANK]) {
    long long found = 0;
#pragma unroll
    for (int axis = 0; axis < MAX_RANK; ++axis) {
        if (axis >= rank) break;
        found += (long long)next_place(index, sizes[axis], axis == rank - 1) * strides[axis];
    }
    return found;
}

__device__ __forceinline__ float prepared(float value, int before) {
    switch (static_cast<Before>(before)) {
        case Before::nothing: return value;
        case Before::square: return value * value;
        case Before::magnitude: return fabsf(value);
    }
    return value;
}

__device__ __forceinline__ float finished(float value, int length, int after) {
    switch (static_cast<After>(after)) {
        case After::nothing: return value;
        case After::mean: return value / length;
        case After::root: return sqrtf(value);
    }
    return value;
}

// One block a result, for long reductions; the number of threads is a power of two.
template <class Operation>
__device__ __forceinline__ void reduce_long(
    const float *x, float *y, const ReduceLayout &layout, int length, float start, int before,
    int after) {
    __shared__ float shared[REDUCTION_THREADS];
    x += offset(blockIdx.x, layout.kept_rank, layout.kept_sizes, layout.kept_strides);
    float value = start;
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
        const long long place =
            offset(i, layout.reduced_rank, layout.reduced_sizes, layout.reduced_strides);
        value = Operation::join(value, prepared(x[place], before));
    }
    value = reduce_block<Operation>(value, shared);
    if (threadIdx.x == 0) y[blockIdx.x] = finished(value, length, after);
}

// One thread a result, for short reductions and for those whose results are neighbours.
template <class Operation>
__device__ __forceinline__ void reduce_short(
    const float *x, float *y, const ReduceLayout &layout, int length, unsigned count, float start,
    int before, int after) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    x += offset(index, layout.kept_rank, layout.kept_sizes, layout.kept_strides);
    float value = start;
    for (int i = 0; i < length; ++i) {
        const long long place =
            offset(i, layout.reduced_rank, layout.reduced_sizes, layout.reduced_strides);
        value = Operation::join(value, prepared(x[place], before));
    }
    y[index] = finished(value, length, after);
}

#define REDUCTION(name, Operation, start)                                                        \
    extern "C" __global__ void reduce_long_##name(                                               \
        const float *x, float *y, ReduceLayout layout, int length, int before, int after) {      \
        reduce_long<Operation>(x, y, layout, length, start, before, after);                      \
    }                                                                                            \
    extern "C" __global__ void reduce_short_##name(                                              \
        const float *x, float *y, ReduceLayout layout, int length, unsigned count, int before,        \
        int after) {                                                                             \
        reduce_short<Operation>(x, y, layout, length, count, start, before, after);              \
    }

REDUCTION(sum, Sum, 0.0f)
REDUCTION(product, Product, 1.0f)
REDUCTION(largest, Largest, -POSITIVE_INFINITY)
REDUCTION(smallest, Smallest, POSITIVE_INFINITY)
