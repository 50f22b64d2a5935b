// Pools with a window, NCHW; a plane is one channel of one picture.

#include "infinity.cuh"
#include "interface.cuh"
#include "order.cuh"

// One thread an output.
extern "C" __global__ void max_pool(const float *x, float *y, Pool pool, unsigned count) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const int out_size = pool.out_height * pool.out_width;
    const int plane = index / out_size, place = index % out_size;
    const int top = place / pool.out_width * pool.stride_height - pool.pad_top;
    const int left = place % pool.out_width * pool.stride_width - pool.pad_left;
    x += (long long)plane * pool.height * pool.width;
    float largest = -POSITIVE_INFINITY;
    for (int i = 0; i < pool.kernel_height; ++i) {
        const int row = top + i * pool.dilation_height;
        if (row < 0 || row >= pool.height) continue;
        for (int j = 0; j < pool.kernel_width; ++j) {
            const int column = left + j * pool.dilation_width;
            if (column >= 0 && column < pool.width)
                largest = larger(largest, x[row * pool.width + column]);
        }
    }
    y[index] = largest;
}

// One thread an output. With `padding_counts` padding is zeros, otherwise it is not counted; what lies
// past the padding (where the result's size is rounded up) never is.
extern "C" __global__ void average_pool(
    const float *x, float *y, Pool pool, int padding_counts, unsigned count) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const int out_size = pool.out_height * pool.out_width;
    const int plane = index / out_size, place = index % out_size;
    const int top = place / pool.out_width * pool.stride_height - pool.pad_top;
    const int left = place % pool.out_width * pool.stride_width - pool.pad_left;
    x += (long long)plane * pool.height * pool.width;
    float total = 0.0f;
    int seen = 0;
    for (int i = 0; i < pool.kernel_height; ++i) {
        const int row = top + i * pool.dilation_height;
        if (row >= pool.height + pool.pad_bottom) break;
        const bool row_inside = row >= 0 && row < pool.height;
        for (int j = 0; j < pool.kernel_width; ++j) {
            const int column = left + j * pool.dilation_width;
            if (column >= pool.width + pool.pad_right) break;
            const bool inside = row_inside && column >= 0 && column < pool.width;
            if (inside) total += x[row * pool.width + column];
            if (inside || padding_counts) ++seen;
        }
    }
    y[index] = total / seen;
}
