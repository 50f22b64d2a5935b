// Convolutions as products of matrices: the matrix of pixels is gathered, never stored.
#pragma once

#include "interface.cuh"

// n / d by 2^32 / d + 1 (0 for d = 1), exact for n d < 2^32.
__device__ __forceinline__ int quotient(int n, int reciprocal) {
    if (reciprocal == 0) return n;
    return static_cast<int>(__umulhi(static_cast<unsigned int>(n),
                                     static_cast<unsigned int>(reciprocal)));
}

// The place of a pixel's window in the input.
struct Corner {
    int top, left;
    __device__ __forceinline__ Corner(const Convolution& shape, int pixel) {
        const int row = pixel / shape.out_width, column = pixel - row * shape.out_width;
        top = row * shape.stride_height - shape.pad_top;
        left = column * shape.stride_width - shape.pad_left;
    }
};

__device__ __forceinline__ bool is_inside(const Convolution& shape, int y, int x) {
    return static_cast<unsigned int>(y) < static_cast<unsigned int>(shape.height) &&
           static_cast<unsigned int>(x) < static_cast<unsigned int>(shape.width);
}

// Number k of a kernel of any size.
struct KernelPlace {
    int channel, row, column;
    __device__ __forceinline__ KernelPlace(const Convolution& shape, int k) {
        channel = quotient(k, shape.area_reciprocal);
        const int place = k - channel * (shape.kernel_height * shape.kernel_width);
        row = quotient(place, shape.width_reciprocal);
        column = place - row * shape.kernel_width;
    }
};

// The window of a pixel.
struct AnyWindow {
    Corner corner;
    __device__ __forceinline__ AnyWindow(const Convolution& shape, int pixel)
        : corner(shape, pixel) {}

    // Returns whether number k of the window lies inside the input, and where.
    __device__ __forceinline__ bool find(const Convolution& shape, int k, int& offset) const {
        const KernelPlace at(shape, k);
        const int y = corner.top + at.row * shape.dilation_height;
        const int x = corner.left + at.column * shape.dilation_width;
        offset = (at.channel * shape.height + y) * shape.width + x;
        return is_inside(shape, y, x);
    }
};
