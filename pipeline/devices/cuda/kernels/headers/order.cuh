// The larger and the smaller of two numbers; NaN where one is NaN, as in ONNX and unlike fmaxf.
#pragma once

__device__ __forceinline__ float larger(float a, float b) {
    return a > b || a != a ? a : b;
}

__device__ __forceinline__ float smaller(float a, float b) {
    return a < b || a != a ? a : b;
}
