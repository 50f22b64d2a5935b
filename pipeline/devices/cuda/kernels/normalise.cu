// Operators that scale numbers by other numbers' statistics.

#include "activation.cuh"
#include "reduction.cuh"

// Batch norm with given statistics, [channels] each; one thread an element. y may be x.
extern "C" __global__ void batch_normalise(
    const float *x, const float *scale, const float *bias, const float *mean, const float *variance,
    float *y, unsigned count, int channels, int inner, float epsilon, int activation, float alpha,
    float beta) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const int channel = index / inner % channels;
    const float factor = scale[channel] / sqrtf(variance[channel] + epsilon);
    const float result = (x[index] - mean[channel]) * factor + bias[channel];
    y[index] = activate(result, activation, alpha, beta);
}

// Each group of `length` numbers by its own mean and variance: one block a group, whose number of threads
// is a power of two. Parameters are [channels]; `inner` numbers in a row share one, and null means 1 or 0.
extern "C" __global__ void group_normalise(
    const float *x, const float *scale, const float *bias, float *y, int length, int channels,
    int inner, float epsilon) {
    __shared__ float shared[REDUCTION_THREADS];
    const long long first = (long long)blockIdx.x * length;
    x += first;
    y += first;
    float total = 0.0f;
    for (int i = threadIdx.x; i < length; i += blockDim.x) total += x[i];
    const float mean = reduce_block<Sum>(total, shared) / length;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < length; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
    const float variance = reduce_block<Sum>(squares, shared) / length;
    const float factor = 1.0f / sqrtf(variance + epsilon);
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
        const int channel = (first + i) / inner % channels;
        const float weight = scale ? scale[channel] : 1.0f, shift = bias ? bias[channel] : 0.0f;
        y[i] = (x[i] - mean) * factor * weight + shift;
    }
}

// Local response norm: over `before` channels before and `after` behind; one thread an element.
extern "C" __global__ void response_normalise(
    const float *x, float *y, unsigned count, int channels, int inner, int before, int after, float alpha,
    float beta, float bias) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const int channel = index / inner % channels;
    const int last = min(channel + after, channels - 1);
    float squares = 0.0f;
    for (int other = max(channel - before, 0); other <= last; ++other) {
        const float value = x[(long long)index + (long long)(other - channel) * inner];
        squares += value * value;
    }
    y[index] = x[index] * powf(bias + alpha * squares, -beta);
}
