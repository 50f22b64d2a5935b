// A convolution by tiles of its product of matrices
// y[image][filter][pixel] = sum over k of w[filter][k] x[image][k][pixel].
#pragma once

#include "gather.cuh"
#include "load.cuh"
#include "pipeline.cuh"
#include "write_tile.cuh"

// What a block computes. Blocks of the grid: tiles of filters (fastest, they read the same pixels),
// tiles of pixels, groups, images along x; splits along y.
struct Place {
    int first_row, first_column;
    int image;  // and group
};

template <class T> __device__ __forceinline__ Place block_place(const Convolution& shape) {
    const int row_tiles = (shape.filters + T::rows - 1) / T::rows;
    const int column_tiles = (shape.out_height * shape.out_width + T::columns - 1) / T::columns;
    const int column_tile = blockIdx.x / row_tiles;
    const int image = column_tile / column_tiles;
    return {static_cast<int>(blockIdx.x - column_tile * row_tiles) * T::rows,
            (column_tile - image * column_tiles) * T::columns, image};
}

template <class T, class B> struct Shared {
    typename T::Stage stages[2];
    typename B::template Table<T> table;
    Place place;  // until the sums are done, to leave the registers to them
};

// Matrices of pixels [k][pixels]. `add` adds the products for k in [begin, end) with the weights `a`
// to the sums, from a block's first pixel on.
template <class KernelPlaces> struct Gathered {
    template <class T> using Loader = Pixels<KernelPlaces, T::columns, T::k, T::threads>;
    template <class T> using Table = typename Loader<T>::Table;
    template <class T, class A>
    static __device__ __forceinline__ void add(A& a, const float* image, const Convolution& shape,
                                               int first, Shared<T, Gathered>& shared, int begin,
                                               int end, typename T::Sums& sums) {
        Loader<T> b(image, shape, first, begin, end, shared.table);
        accumulate<T>(shared.stages, a, b, end - begin, sums);
    }
};

// A 1x1 convolution with stride 1 and no padding: the input is the matrix.
struct Plain {
    template <class T> struct Table {};
    template <class T, class A>
    static __device__ __forceinline__ void add(A& a, const float* image, const Convolution& shape,
                                               int first, Shared<T, Plain>& shared, int begin,
                                               int end, typename T::Sums& sums) {
        using Fours = AcrossK<4, T::columns, T::k, T::threads>;
        using Ones = AcrossK<1, T::columns, T::k, T::threads>;
        const int pixels = shape.height * shape.width;
        const bool fours = Fours::allowed(image, pixels);
        image += static_cast<long long>(begin) * pixels + first;
        // Two loops: one that could do either would need the registers of both.
        if (fours) {
            Fours b(image, pixels, pixels - first);
            accumulate<T>(shared.stages, a, b, end - begin, sums);
        } else {
            Ones b(image, pixels, pixels - first);
            accumulate<T>(shared.stages, a, b, end - begin, sums);
        }
    }
};

template <class T, class B>
__device__ __forceinline__ void convolve(const float* x, const float* w, float* y,
                                         const Convolution& shape, Epilogue epilogue) {
    __shared__ Shared<T, B> shared;
    const int depth = shape.channels * shape.kernel_height * shape.kernel_width;
    typename T::Sums sums = {};
    {
        const Place place = block_place<T>(shape);
        if (threadIdx.x == 0) shared.place = place;
        const int begin = blockIdx.y * shape.split_k, end = min(depth, begin + shape.split_k);
        const int first_filter = place.image % shape.groups * shape.filters + place.first_row;
        const size_t input = static_cast<size_t>(shape.channels) * shape.height * shape.width;
        AlongK<T::rows, T::k, T::threads> a(w + static_cast<size_t>(first_filter) * depth + begin,
                                            depth, shape.filters - place.first_row);
        B::template add<T>(a, x + place.image * input, shape, place.first_column, shared, begin,
                           end, sums);
    }
    const Place place = shared.place;
    const int pixels = shape.out_height * shape.out_width;
    const size_t output = static_cast<size_t>(place.image) * shape.filters * pixels;
    if (epilogue.bias != nullptr) epilogue.bias += place.image % shape.groups * shape.filters;
    if (epilogue.residual != nullptr) epilogue.residual += output;
    y += static_cast<size_t>(blockIdx.y) * shape.split_stride + output;
    const Target target =
        make_target(y, epilogue, shape.filters, pixels, place.first_row, place.first_column);
    T::write(sums, shared.stages, target, EpilogueWriter{epilogue});
}

#define CONVOLVE(name, matrix, blocks, ...)                                                       \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__::threads, blocks) name(              \
        const float* __restrict__ x, const float* __restrict__ w, float* y, const float* bias,    \
        const float* residual, Convolution shape, int residual_last, int activation, float alpha, \
        float beta) {                                                                             \
        convolve<__VA_ARGS__, matrix>(                                                            \
            x, w, y, shape, {bias, residual, residual_last, activation, alpha, beta});            \
    }
