// Winograd's convolution F(2x2, 3x3), stride 1: 16 products where the sum over windows takes 36.
//
// Every 2x2 outputs need 4x4 inputs. U = G g G^T of the filters [16][filters][channels] and
// V = B^T d B of the inputs [16][channels][tiles] are multiplied for each of the 16 places by the
// 1x1 convolution of convolution.cu (places are its groups); the outputs are A^T m A.

#include "epilogue.cuh"
#include "window.cuh"

__device__ __forceinline__ void filter_row(const float (&g)[3], float (&u)[4]) {
    const float outer = __fadd_rn(g[0], g[2]);
    u[0] = g[0];
    u[1] = 0.5f * __fadd_rn(outer, g[1]);
    u[2] = 0.5f * __fadd_rn(outer, -g[1]);
    u[3] = g[2];
}

// `count`: filters times channels.
extern "C" __global__ void __launch_bounds__(256)
    transform_filters(const float* __restrict__ w, float* __restrict__ u, int count) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    float half[3][4], column[3], all[4];
#pragma unroll
    for (int row = 0; row < 3; ++row) {
        const float* g = w + static_cast<size_t>(i) * 9 + row * 3;
        const float three[3] = {g[0], g[1], g[2]};
        filter_row(three, half[row]);
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) {
#pragma unroll
        for (int row = 0; row < 3; ++row) column[row] = half[row][x];
        filter_row(column, all);
#pragma unroll
        for (int y = 0; y < 4; ++y) u[static_cast<size_t>(y * 4 + x) * count + i] = all[y];
    }
}

__device__ __forceinline__ void input_row(float (&d)[4]) {
    const float first = d[0] - d[2], second = d[1] + d[2];
    const float third = d[2] - d[1], last = d[1] - d[3];
    d[0] = first, d[1] = second, d[2] = third, d[3] = last;
}

// Tiles first to first + count of one image; v [16][channels][count]. Threads go over count tiles
// for each channel.
extern "C" __global__ void __launch_bounds__(256)
    transform_input(const float* __restrict__ x, float* __restrict__ v, Convolution shape,
                    int first, int count) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const int size = shape.channels * count;
    if (i >= size) return;
    const int channel = i / count, tile = first + i - channel * count;
    const int tiles_across = (shape.out_width + 1) / 2;
    const int tile_row = tile / tiles_across, tile_column = tile - tile_row * tiles_across;
    const int top = tile_row * 2 - shape.pad_top, left = tile_column * 2 - shape.pad_left;
    const float* plane = x + static_cast<size_t>(channel) * shape.height * shape.width;
    float d[4][4];
#pragma unroll
    for (int row = 0; row < 4; ++row) {
#pragma unroll
        for (int column = 0; column < 4; ++column) {
            const int at_y = top + row, at_x = left + column;
            const bool inside =
                static_cast<unsigned int>(at_y) < static_cast<unsigned int>(shape.height) &&
                static_cast<unsigned int>(at_x) < static_cast<unsigned int>(shape.width);
            d[row][column] = inside ? plane[at_y * shape.width + at_x] : 0.0f;
        }
        input_row(d[row]);
    }
#pragma unroll
    for (int column = 0; column < 4; ++column) {
        float four[4] = {d[0][column], d[1][column], d[2][column], d[3][column]};
        input_row(four);
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            v[static_cast<size_t>(row * 4 + column) * size + i] = four[row];
        }
    }
}

// m [16][filters][count] to the outputs of tiles first to first + count of one image.
extern "C" __global__ void __launch_bounds__(256)
    transform_output(const float* __restrict__ m, float* y, const float* bias,
                     const float* residual, Convolution shape, int first, int count,
                     int residual_last, int activation, float alpha, float beta) {
    const Epilogue epilogue = {bias, residual, residual_last, activation, alpha, beta};
    const int i = blockIdx.x * 256 + threadIdx.x;
    const int size = shape.filters * count;
    if (i >= size) return;
    const int filter = i / count, tile = first + i - filter * count;
    const int tiles_across = (shape.out_width + 1) / 2;
    const int tile_row = tile / tiles_across, tile_column = tile - tile_row * tiles_across;
    float half[2][4];
#pragma unroll
    for (int column = 0; column < 4; ++column) {
        float four[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            four[row] = m[static_cast<size_t>(row * 4 + column) * size + i];
        }
        half[0][column] = four[0] + four[1] + four[2];
        half[1][column] = four[1] - four[2] - four[3];
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        const float (&four)[4] = half[row];
        const float sums[2] = {four[0] + four[1] + four[2], four[1] - four[2] - four[3]};
#pragma unroll
        for (int column = 0; column < 2; ++column) {
            const int at_y = tile_row * 2 + row, at_x = tile_column * 2 + column;
            if (at_y >= shape.out_height || at_x >= shape.out_width) continue;
            const size_t index =
                (static_cast<size_t>(filter) * shape.out_height + at_y) * shape.out_width + at_x;
            y[index] = finish(epilogue, sums[column], filter, index);
        }
    }
}
