// Reductions over a block in a fixed order: the same numbers give the same result, bit for bit.
#pragma once

#include "order.cuh"

// More threads than this a block may not have.
#define REDUCTION_THREADS 256

struct Sum {
    static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};

struct Largest {
    static __device__ __forceinline__ float join(float a, float b) { return larger(a, b); }
};

struct Smallest {
    static __device__ __forceinline__ float join(float a, float b) { return smaller(a, b); }
};

struct Product {
    static __device__ __forceinline__ float join(float a, float b) { return a * b; }
};

// Joins the values of all threads of the block, whose number is a power of two; every thread gets the
// result. `shared` holds a number a thread and can be used again right away.
template <class Operation>
__device__ __forceinline__ float reduce_block(float value, float *shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] = Operation::join(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    const float result = shared[0];
    __syncthreads();
    return result;
}
