// What is done to a sum before it is written: bias, residual, activation.
#pragma once

#include "activation.cuh"

struct Epilogue {
    const float* bias;      // of the first channel that the launch computes, or null
    const float* residual;  // laid out as the output, or null; may be the output itself
    int residual_last;      // added behind the activation, not before it
    int activation;
    float alpha, beta;
};

__device__ __forceinline__ bool adds_first(const Epilogue& epilogue) {
    return epilogue.residual != nullptr && !epilogue.residual_last;
}

__device__ __forceinline__ bool adds_last(const Epilogue& epilogue) {
    return epilogue.residual != nullptr && epilogue.residual_last;
}

// Never -0, also without a bias: a sum that underflowed to -0 becomes +0, as it would had a zero of
// padding been added to it. How many of those are added differs between tiles.
__device__ __forceinline__ float channel_bias(const Epilogue& epilogue, int channel) {
    return epilogue.bias == nullptr ? 0.0f : __fadd_rn(epilogue.bias[channel], 0.0f);
}

// `index`: of the element in the output.
__device__ __forceinline__ float finish(const Epilogue& epilogue, float sum, int channel,
                                        size_t index) {
    float x = __fadd_rn(sum, channel_bias(epilogue, channel));
    if (adds_first(epilogue)) x = __fadd_rn(x, epilogue.residual[index]);
    x = activate(x, epilogue.activation, epilogue.alpha, epilogue.beta);
    if (adds_last(epilogue)) x = __fadd_rn(x, epilogue.residual[index]);
    return x;
}
