// Depthwise convolutions: every channel has its own filters, `filters` of them.
//
// Memory bounds them, not arithmetic: threads that are neighbours read and write neighbours in a
// row, and a thread computes some outputs below each other, whose windows overlap.

#include "epilogue.cuh"
#include "window.cuh"

// Outputs of a thread, below each other.
constexpr int strip = 4;

struct Spot {
    int plane, filter;        // image and channel of the output; channel of the output
    int row, column;          // the first output
    const float* x;           // the input's plane
    const float* w;           // the filter
    size_t index;             // of the first output in y
};

// Threads go over columns, strips, channels, images.
template <int Rows>
__device__ __forceinline__ bool find_spot(const float* x, const float* w,
                                          const Convolution& shape, int images, Spot& spot) {
    const int strips = (shape.out_height + Rows - 1) / Rows;
    const int thread = blockIdx.x * 128 + threadIdx.x;
    const int line = thread / shape.out_width;
    spot.column = thread - line * shape.out_width;
    spot.plane = line / strips;
    spot.row = (line - spot.plane * strips) * Rows;
    const int outputs = shape.groups * shape.filters;
    const int image = spot.plane / outputs;
    spot.filter = spot.plane - image * outputs;
    const int channel = image * shape.groups + spot.filter / shape.filters;
    spot.x = x + static_cast<size_t>(channel) * shape.height * shape.width;
    spot.w = w + spot.filter * shape.kernel_height * shape.kernel_width;
    spot.index = (static_cast<size_t>(spot.plane) * shape.out_height + spot.row) *
                     shape.out_width + spot.column;
    return image < images;
}

__device__ __forceinline__ float pixel(const Convolution& shape, const float* plane, int y, int x) {
    const bool inside = static_cast<unsigned int>(y) < static_cast<unsigned int>(shape.height) &&
                        static_cast<unsigned int>(x) < static_cast<unsigned int>(shape.width);
    return inside ? plane[y * shape.width + x] : 0.0f;
}

// Kernel Size x Size, the same stride both ways, no dilation. A row of the input is read once for
// all outputs of the strip; each output still takes its window row by row.
template <int Size, int Stride>
__device__ __forceinline__ void depthwise_strip(const float* x, const float* w, float* y,
                                                const Convolution& shape, int images,
                                                const Epilogue& epilogue) {
    Spot spot;
    if (!find_spot<strip>(x, w, shape, images, spot)) return;
    float weights[Size][Size], sums[strip] = {};
#pragma unroll
    for (int i = 0; i < Size * Size; ++i) weights[i / Size][i % Size] = spot.w[i];
    const int top = spot.row * Stride - shape.pad_top;
    const int left = spot.column * Stride - shape.pad_left;
#pragma unroll
    for (int row = 0; row < (strip - 1) * Stride + Size; ++row) {
        float line[Size];
#pragma unroll
        for (int column = 0; column < Size; ++column) {
            line[column] = pixel(shape, spot.x, top + row, left + column);
        }
#pragma unroll
        for (int output = 0; output < strip; ++output) {
            const int inner = row - output * Stride;
            if (inner < 0 || inner >= Size) continue;
#pragma unroll
            for (int column = 0; column < Size; ++column) {
                sums[output] = fmaf(line[column], weights[inner][column], sums[output]);
            }
        }
    }
    // A ring, as in write_tile.cuh: one copy of the activations.
#pragma unroll 1
    for (int output = 0; output < strip && spot.row + output < shape.out_height; ++output) {
        const size_t index = spot.index + static_cast<size_t>(output) * shape.out_width;
        y[index] = finish(epilogue, sums[0], spot.filter, index);
#pragma unroll
        for (int next = 1; next < strip; ++next) sums[next - 1] = sums[next];
    }
}

__device__ __forceinline__ void depthwise_one(const float* x, const float* w, float* y,
                                              const Convolution& shape, int images,
                                              const Epilogue& epilogue) {
    Spot spot;
    if (!find_spot<1>(x, w, shape, images, spot)) return;
    const int top = spot.row * shape.stride_height - shape.pad_top;
    const int left = spot.column * shape.stride_width - shape.pad_left;
    float sum = 0.0f;
    for (int row = 0; row < shape.kernel_height; ++row) {
        for (int column = 0; column < shape.kernel_width; ++column) {
            const float value = pixel(shape, spot.x, top + row * shape.dilation_height,
                                      left + column * shape.dilation_width);
            sum = fmaf(value, spot.w[row * shape.kernel_width + column], sum);
        }
    }
    y[spot.index] = finish(epilogue, sum, spot.filter, spot.index);
}

#define DEPTHWISE(name, compute)                                                               \
    extern "C" __global__ void __launch_bounds__(128) name(                                    \
        const float* __restrict__ x, const float* __restrict__ w, float* y, const float* bias, \
        const float* residual, Convolution shape, int images, int residual_last,               \
        int activation, float alpha, float beta) {                                             \
        const Epilogue epilogue = {bias, residual, residual_last, activation, alpha, beta};    \
        compute(x, w, y, shape, images, epilogue);                                             \
    }

DEPTHWISE(depthwise_3x3_s1, (depthwise_strip<3, 1>))
DEPTHWISE(depthwise_3x3_s2, (depthwise_strip<3, 2>))
DEPTHWISE(depthwise_5x5_s1, (depthwise_strip<5, 1>))
DEPTHWISE(depthwise_5x5_s2, (depthwise_strip<5, 2>))
DEPTHWISE(depthwise_any, depthwise_one)
