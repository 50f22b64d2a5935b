// Convolutions as products of matrices: the matrix of pixels is gathered, never stored.
#pragma once

// One convolution. `channels` and `filters`: of one group. Numbers k go over channels, rows and
// columns of the kernel, as weights lie.
struct Convolution {
    int channels, height, width;
    int filters, kernel_height, kernel_width;
    int stride_height, stride_width;
    int pad_top, pad_left;
    int dilation_height, dilation_width;
    int out_height, out_width;
    int groups;
    int split_k, split_stride;            // numbers k of a split; sums from split to split
    int area_reciprocal, width_reciprocal;  // of the kernel, for `quotient`
};

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

// Windows of any size.
struct AnyWindow {
    Corner corner;
    __device__ __forceinline__ AnyWindow(const Convolution& shape, int pixel)
        : corner(shape, pixel) {}

    // Returns whether number k of the window lies inside the input, and where.
    __device__ __forceinline__ bool find(const Convolution& shape, int k, int& offset) const {
        const int channel = quotient(k, shape.area_reciprocal);
        const int place = k - channel * (shape.kernel_height * shape.kernel_width);
        const int row = quotient(place, shape.width_reciprocal);
        const int column = place - row * shape.kernel_width;
        const int y = corner.top + row * shape.dilation_height;
        const int x = corner.left + column * shape.dilation_width;
        offset = (channel * shape.height + y) * shape.width + x;
        return static_cast<unsigned int>(y) < static_cast<unsigned int>(shape.height) &&
               static_cast<unsigned int>(x) < static_cast<unsigned int>(shape.width);
    }
};

// Windows of 3x3: which of the nine places lie inside is found once for a pixel.
struct Window3 {
    int origin;
    unsigned int inside;
    __device__ __forceinline__ Window3(const Convolution& shape, int pixel) : inside(0) {
        const Corner corner(shape, pixel);
        origin = corner.top * shape.width + corner.left;
#pragma unroll
        for (int place = 0; place < 9; ++place) {
            const int y = corner.top + place / 3 * shape.dilation_height;
            const int x = corner.left + place % 3 * shape.dilation_width;
            const bool found =
                static_cast<unsigned int>(y) < static_cast<unsigned int>(shape.height) &&
                static_cast<unsigned int>(x) < static_cast<unsigned int>(shape.width);
            inside |= static_cast<unsigned int>(found) << place;
        }
    }

    __device__ __forceinline__ bool find(const Convolution& shape, int k, int& offset) const {
        const int channel = k / 9, place = k - 9 * channel;
        const int row = place * 11 >> 5, column = place - 3 * row;  // place / 3 for 0 to 8
        offset = origin + channel * (shape.height * shape.width) +
                 row * (shape.dilation_height * shape.width) + column * shape.dilation_width;
        return inside >> place & 1;
    }
};

// The matrix [k][pixels]; `Span` pixels of it. A thread reads for one pixel, the next thread for the
// next pixel. Windows of pixels beyond the last one may lie inside the input, too; what they add to
// is never written.
template <class Window, int Span, int K, int Threads> struct Pixels {
    static_assert(Threads % Span == 0);
    static constexpr int held_numbers = Span * K / Threads, k_step = Threads / Span;
    const float* x;
    const Convolution& shape;
    Window window;
    float held[held_numbers];

    __device__ __forceinline__ Pixels(const float* image, const Convolution& convolution, int first)
        : x(image), shape(convolution), window(convolution, first + threadIdx.x % Span) {}

    static __device__ __forceinline__ int k(int i) { return threadIdx.x / Span + i * k_step; }

    __device__ __forceinline__ void fetch(int begin, int end) {
#pragma unroll
        for (int i = 0; i < held_numbers; ++i) {
            int offset;
            const bool inside = window.find(shape, begin + k(i), offset);
            held[i] = inside && begin + k(i) < end ? __ldg(x + offset) : 0.0f;
        }
    }

    template <class Put> __device__ __forceinline__ void store(Put put) const {
#pragma unroll
        for (int i = 0; i < held_numbers; ++i) put.one(k(i), threadIdx.x % Span, held[i]);
    }
};
