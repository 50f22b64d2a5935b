// Written by `python -m tools.c_headers` from pipeline/devices/interface/cuda.py: change it there.
#pragma once

#ifdef __CUDACC_RTC__
#define AT(type, member, at)
#else
#define AT(type, member, at) static_assert(__builtin_offsetof(type, member) == at, #type "." #member);
#endif
#define SIZE(type, bytes) static_assert(sizeof(type) == bytes, "size of " #type);

// Functions of each element, as kernels fuse them; parameters as in models/network/activations.py.
enum class Activation {
    none, relu, leaky_relu, clip, sigmoid, tanh, mish, silu, hard_sigmoid, hard_swish, elu, softplus, exp,
    gelu, gelu_tanh, absolute, ceil, erf, floor, log, negative, reciprocal, round, sign, softsign, sqrt,
    celu, selu, thresholded_relu,
};

// Functions of two, as there.
enum class Arithmetic {
    add, subtract, multiply, divide, power, smaller, larger, scale_negative, modulo,
};

// What a reduction does to each number before it joins them, and to what they come to.
enum class Before {
    nothing, square, magnitude,
};

enum class After {
    nothing, mean, root,
};

// Axes of a layout.
enum {
    MAX_RANK = 6,
};

// Layouts. Axes are innermost first; strides count elements, 0 along axes that an input does not have.
struct BroadcastLayout {
    int rank;
    int sizes[MAX_RANK], a[MAX_RANK], b[MAX_RANK];
};
SIZE(BroadcastLayout, 76) AT(BroadcastLayout, rank, 0) AT(BroadcastLayout, sizes, 4)
AT(BroadcastLayout, a, 28) AT(BroadcastLayout, b, 52)

// Strides may be negative (the pointer is then at the last element) or, on the side that is read, 0.
struct CopyLayout {
    int rank;
    int sizes[MAX_RANK], source[MAX_RANK], target[MAX_RANK];
};
SIZE(CopyLayout, 76) AT(CopyLayout, rank, 0) AT(CopyLayout, sizes, 4) AT(CopyLayout, source, 28)
AT(CopyLayout, target, 52)

// The result is contiguous.
struct ReduceLayout {
    int kept_rank, reduced_rank;
    int kept_sizes[MAX_RANK], kept_strides[MAX_RANK], reduced_sizes[MAX_RANK], reduced_strides[MAX_RANK];
};
SIZE(ReduceLayout, 104) AT(ReduceLayout, kept_rank, 0) AT(ReduceLayout, reduced_rank, 4)
AT(ReduceLayout, kept_sizes, 8) AT(ReduceLayout, kept_strides, 32) AT(ReduceLayout, reduced_sizes, 56)
AT(ReduceLayout, reduced_strides, 80)

// A pool with a window on planes.
struct Pool {
    int height, width, out_height, out_width, kernel_height, kernel_width;
    int stride_height, stride_width, pad_top, pad_left, pad_bottom, pad_right;
    int dilation_height, dilation_width;
};
SIZE(Pool, 56) AT(Pool, height, 0) AT(Pool, width, 4) AT(Pool, out_height, 8) AT(Pool, out_width, 12)
AT(Pool, kernel_height, 16) AT(Pool, kernel_width, 20) AT(Pool, stride_height, 24)
AT(Pool, stride_width, 28) AT(Pool, pad_top, 32) AT(Pool, pad_left, 36) AT(Pool, pad_bottom, 40)
AT(Pool, pad_right, 44) AT(Pool, dilation_height, 48) AT(Pool, dilation_width, 52)

// A convolution. `channels` and `filters`: of one group. Numbers k go over channels, rows and columns of
// the kernel, as weights lie.
struct Convolution {
    int channels, height, width, filters, kernel_height, kernel_width;
    int stride_height, stride_width, pad_top, pad_left;
    int dilation_height, dilation_width, out_height, out_width, groups;
    int split_k, split_stride;  // numbers k of a split; sums from one to the next
    int area_reciprocal, width_reciprocal;  // of the kernel, for `quotient`
};
SIZE(Convolution, 76) AT(Convolution, channels, 0) AT(Convolution, height, 4) AT(Convolution, width, 8)
AT(Convolution, filters, 12) AT(Convolution, kernel_height, 16) AT(Convolution, kernel_width, 20)
AT(Convolution, stride_height, 24) AT(Convolution, stride_width, 28) AT(Convolution, pad_top, 32)
AT(Convolution, pad_left, 36) AT(Convolution, dilation_height, 40) AT(Convolution, dilation_width, 44)
AT(Convolution, out_height, 48) AT(Convolution, out_width, 52) AT(Convolution, groups, 56)
AT(Convolution, split_k, 60) AT(Convolution, split_stride, 64) AT(Convolution, area_reciprocal, 68)
AT(Convolution, width_reciprocal, 72)
