// Convolutions as implicit products of matrices in float32.
//
// An output is one sum in ascending k, one fmaf for each k: its bits depend neither on the tile nor
// on which other outputs the launch computes. With splits, each range of k is such a sum, written to
// scratch [split][image][filter][pixel], and reduce_splits adds them in ascending order.

#include "convolve.cuh"
#include "tile.cuh"

// Rows and columns of the tile, of a thread; k. The blocks are how many fit on a multiprocessor.
#define CONVOLVE_TILES(suffix, matrix)                                            \
    CONVOLVE(convolve_128x128_##suffix, matrix, 2, Tile<128, 128, 8, 8, 8>)       \
    CONVOLVE(convolve_128x64_##suffix, matrix, 3, Tile<128, 64, 8, 8, 8>)         \
    CONVOLVE(convolve_64x64_##suffix, matrix, 4, Tile<64, 64, 8, 4, 16>)          \
    CONVOLVE(convolve_32x128_##suffix, matrix, 4, Tile<32, 128, 4, 8, 16>)         \
    CONVOLVE(convolve_64x32_##suffix, matrix, 6, Tile<64, 32, 4, 4, 16>)

CONVOLVE_TILES(k1, Plain)
CONVOLVE_TILES(k3, Gathered<Place3>)
CONVOLVE_TILES(any, Gathered<AnyPlace>)

// y[i] = epilogue of the sum of `splits` partial sums; y [images][filters][pixels], `count` numbers.
extern "C" __global__ void __launch_bounds__(256)
    reduce_splits(const float* __restrict__ partial, float* y, const float* bias,
                  const float* residual, int splits, int count, int filters, int pixels,
                  int residual_last, int activation, float alpha, float beta) {
    const Epilogue epilogue = {bias, residual, residual_last, activation, alpha, beta};
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) {
        sum = __fadd_rn(sum, partial[static_cast<size_t>(split) * count + i]);
    }
    y[i] = finish(epilogue, sum, i / pixels % filters, i);
}

// The epilogue in place, after a product that somebody else computed.
extern "C" __global__ void __launch_bounds__(256)
    bias_activate(float* y, const float* bias, const float* residual, int count, int filters,
                  int pixels, int residual_last, int activation, float alpha, float beta) {
    const Epilogue epilogue = {bias, residual, residual_last, activation, alpha, beta};
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) y[i] = finish(epilogue, y[i], i / pixels % filters, i);
}
