// Operators on each element, one thread each. A result may lie where an input of its own shape lies.

#include "activation.cuh"
#include "interface.cuh"
#include "order.cuh"
#include "strides.cuh"

__device__ __forceinline__ float join(float a, float b, int operation) {
    switch (static_cast<Arithmetic>(operation)) {
        case Arithmetic::add: return a + b;
        case Arithmetic::subtract: return a - b;
        case Arithmetic::multiply: return a * b;
        case Arithmetic::divide: return a / b;
        case Arithmetic::power: return powf(a, b);
        case Arithmetic::smaller: return smaller(a, b);
        case Arithmetic::larger: return larger(a, b);
        case Arithmetic::scale_negative: return a < 0.0f ? a * b : a;
        case Arithmetic::modulo: return fmodf(a, b);
    }
    return a;
}

extern "C" __global__ void activate_elements(
    const float *x, float *y, unsigned count, int activation, float alpha, float beta) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) y[index] = activate(x[index], activation, alpha, beta);
}

// a and b have the shape of the result.
extern "C" __global__ void binary(
    const float *a, const float *b, float *y, unsigned count, int operation, int activation, float alpha,
    float beta) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        y[index] = activate(join(a[index], b[index], operation), activation, alpha, beta);
}

// x has the shape of the result; `inner` neighbours share a number of z, which has `period` of them (a
// number a channel, a row, or one for all). z is the left operand with `left`.
extern "C" __global__ void binary_periodic(
    const float *x, const float *z, float *y, unsigned count, int inner, int period, int left,
    int operation, int activation, float alpha, float beta) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const float one = x[index], other = z[index / inner % period];
    const float result = left ? join(other, one, operation) : join(one, other, operation);
    y[index] = activate(result, activation, alpha, beta);
}

extern "C" __global__ void binary_broadcast(
    const float *a, const float *b, float *y, BroadcastLayout layout, unsigned count, int operation,
    int activation, float alpha, float beta) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    unsigned around = index;
    int first = 0, second = 0;
#pragma unroll
    for (int axis = 0; axis < MAX_RANK; ++axis) {
        if (axis >= layout.rank) break;
        const int place = next_place(around, layout.sizes[axis], axis == layout.rank - 1);
        first += place * layout.a[axis];
        second += place * layout.b[axis];
    }
    y[index] = activate(join(a[first], b[second], operation), activation, alpha, beta);
}
