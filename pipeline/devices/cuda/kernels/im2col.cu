// The matrix of pixels of a convolution, stored: for libraries that only multiply matrices.

#include "window.cuh"

// columns[k][i] = number k of the window of pixel first + i, for `count` pixels. `x`: one group of
// one image.
extern "C" __global__ void __launch_bounds__(256)
    im2col(const float* __restrict__ x, float* __restrict__ columns, Convolution shape, int first,
           int count) {
    const int depth = shape.channels * shape.kernel_height * shape.kernel_width;
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    const AnyWindow window(shape, first + i);
    // The blocks along y share the numbers k; a thread stays with its pixel.
    for (int k = blockIdx.y; k < depth; k += gridDim.y) {
        int offset;
        const bool inside = window.find(shape, k, offset);
        columns[static_cast<size_t>(k) * count + i] = inside ? x[offset] : 0.0f;
    }
}
