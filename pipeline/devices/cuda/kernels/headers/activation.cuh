// Functions of each element, as kernels fuse them.
//
// Every product that a sum follows is an fmaf, or the sum an __fadd_rn: nothing is left to the
// compiler to contract, so the bits of a value do not depend on the kernel around it.
#pragma once

#include "interface.cuh"

__device__ __forceinline__ float clamp(float x, float low, float high) {
    return x < low ? low : (x > high ? high : x);  // keeps NaN, as fminf and fmaxf do not
}

// exp(-x) overflows to infinity for small x; the quotient is then the 0 that it should be. The fast
// quotient is within 2 units in the last place and has no branch, which the exact one has.
__device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.0f, __fadd_rn(1.0f, expf(-x)));
}

__device__ __forceinline__ float softplus(float x) {
    return __fadd_rn(x > 0.0f ? x : 0.0f, log1pf(expf(-fabsf(x))));
}

// tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2), which neither cancels nor overflows below 20;
// from 20 on it is 1 in float32.
__device__ __forceinline__ float mish(float x) {
    if (x > 20.0f) return x;
    const float e = expf(x);
    const float twice = __fadd_rn(e, 2.0f);
    return x * __fdividef(e * twice, fmaf(e, twice, 2.0f));
}

// erfc, because 1 + erf cancels for negative x.
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * erfcf(-0.70710678f * x); }

// 0.5 (1 + tanh(u)) = sigmoid(2 u), which does not cancel for negative x.
__device__ __forceinline__ float gelu_tanh(float x) {
    return x * sigmoid(1.59576912f * fmaf(0.044715f * x * x, x, x));
}

// Those that take a few instructions: kernels that hold many sums unroll them.
__device__ __forceinline__ bool is_piecewise_linear(int activation) {
    return activation <= static_cast<int>(Activation::clip);
}

__device__ __forceinline__ float piecewise_linear(float x, int activation, float alpha,
                                                  float beta) {
    switch (static_cast<Activation>(activation)) {
        case Activation::relu: return x < 0.0f ? 0.0f : x;
        case Activation::leaky_relu: return x < 0.0f ? alpha * x : x;
        case Activation::clip: return clamp(x, alpha, beta);
        default: return x;
    }
}

__device__ __forceinline__ float activate(float x, int activation, float alpha, float beta) {
    switch (static_cast<Activation>(activation)) {
        case Activation::sigmoid: return sigmoid(x);
        case Activation::tanh: return tanhf(x);
        case Activation::mish: return mish(alpha * x);
        case Activation::silu: return x * sigmoid(alpha * x);
        case Activation::hard_sigmoid: return clamp(fmaf(alpha, x, beta), 0.0f, 1.0f);
        case Activation::hard_swish: return x * clamp(fmaf(x, 1.0f / 6.0f, 0.5f), 0.0f, 1.0f);
        case Activation::elu: return x < 0.0f ? alpha * expm1f(x) : x;
        case Activation::celu: return x < 0.0f ? alpha * expm1f(x / alpha) : x;
        case Activation::selu: return beta * (x < 0.0f ? alpha * expm1f(x) : x);
        case Activation::thresholded_relu: return x <= alpha ? 0.0f : x;
        case Activation::softplus: return softplus(x);
        case Activation::exp: return expf(x);
        case Activation::gelu: return gelu(x);
        case Activation::gelu_tanh: return gelu_tanh(x);
        case Activation::absolute: return fabsf(x);
        case Activation::ceil: return ceilf(x);
        case Activation::erf: return erff(x);
        case Activation::floor: return floorf(x);
        case Activation::log: return logf(x);
        case Activation::negative: return -x;
        case Activation::reciprocal: return 1.0f / x;
        case Activation::round: return rintf(x);  // to even where it is a half
        case Activation::sign: return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
        case Activation::softsign: return x / (1.0f + fabsf(x));
        case Activation::sqrt: return sqrtf(x);
        default: return piecewise_linear(x, activation, alpha, beta);
    }
}
