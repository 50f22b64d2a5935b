// The product of matrices by tiles on tensor cores: float16 in shared memory, float32 elsewhere.
#pragma once

#include "tensor_core.cuh"
#include "write_tile.cuh"

__device__ __forceinline__ unsigned int two_halves(float low, float high) {
    return to_half(low) | static_cast<unsigned int>(to_half(high)) << 16;
}

__device__ __forceinline__ uint2 four_halves(float4 four) {
    return make_uint2(two_halves(four.x, four.y), two_halves(four.z, four.w));
}

// Row-major [row][k], and row-major [k][column].
template <int Stride> struct HalfPutA {
    unsigned short* to;
    __device__ __forceinline__ void along_k(int k, int row, float4 four) const {
        *reinterpret_cast<uint2*>(to + row * Stride + k) = four_halves(four);
    }
};
template <int Stride> struct HalfPutB {
    unsigned short* to;
    __device__ __forceinline__ void one(int k, int column, float value) const {
        to[k * Stride + column] = to_half(value);
    }
    __device__ __forceinline__ void across_k(int k, int column, float4 four) const {
        *reinterpret_cast<uint2*>(to + k * Stride + column) = four_halves(four);
    }
};

// A block computes Rows x Columns of C, each warp WarpRows x WarpColumns of them; K is how far it
// goes along k between two barriers.
template <int Rows, int Columns, int WarpRows, int WarpColumns, int K> struct HalfTile {
    static constexpr int rows = Rows, columns = Columns, k = K;
    static constexpr int across = Columns / WarpColumns;
    static constexpr int threads = Rows / WarpRows * across * 32;
    static constexpr int down_fragments = WarpRows / 16, across_fragments = WarpColumns / 16;
    static_assert(across_fragments <= down_fragments);

    // The padding of 16 bytes puts rows that are read together into different banks.
    static constexpr int a_stride = K + 8, b_stride = Columns + 8;
    struct alignas(32) Stage {
        unsigned short a[Rows * a_stride];
        unsigned short b[K * b_stride];
    };
    struct Sums {
        SumFragment of[down_fragments * across_fragments];
    };
    // A fragment of sums on its way out; 16 bytes of padding, again for the banks.
    static constexpr int sum_stride = 20, sum_floats = 16 * sum_stride;
    static_assert(threads / 32 * sum_floats * 4 <= 2 * sizeof(Stage));

    static __device__ __forceinline__ HalfPutA<a_stride> put_a(Stage& stage) { return {stage.a}; }
    static __device__ __forceinline__ HalfPutB<b_stride> put_b(Stage& stage) { return {stage.b}; }
    static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
    static __device__ __forceinline__ int warp_row() { return warp() / across * WarpRows; }
    static __device__ __forceinline__ int warp_column() { return warp() % across * WarpColumns; }

    static __device__ __forceinline__ void multiply(const Stage& stage, Sums& sums) {
#pragma unroll
        for (int at = 0; at < K; at += 16) {
            FactorFragment b[across_fragments];  // kept, because they are fewer than those of A
#pragma unroll
            for (int j = 0; j < across_fragments; ++j) {
                load_right(b[j], stage.b + at * b_stride + warp_column() + j * 16, b_stride);
            }
#pragma unroll
            for (int i = 0; i < down_fragments; ++i) {
                FactorFragment a;
                load_left(a, stage.a + (warp_row() + i * 16) * a_stride + at, a_stride);
#pragma unroll
                for (int j = 0; j < across_fragments; ++j) {
                    multiply_add(sums.of[i * across_fragments + j], a, b[j]);
                }
            }
        }
    }

    // The fragments go around in a ring, as the rows of Tile do.
    static __device__ __forceinline__ void write(Sums& sums, Stage* stages, const Target& target,
                                                 const EpilogueWriter& writer) {
        constexpr int fragments = down_fragments * across_fragments;
        float* square = reinterpret_cast<float*>(stages) + warp() * sum_floats;
#pragma unroll 1
        for (int i = 0; i < fragments; ++i) {
            store_sums(square, sums.of[0], sum_stride);
            __syncwarp();
            write_square(square, target, warp_row() + i / across_fragments * 16,
                         warp_column() + i % across_fragments * 16, writer.epilogue);
            __syncwarp();
#pragma unroll
            for (int next = 1; next < fragments; ++next) sums.of[next - 1] = sums.of[next];
        }
    }

    // A lane has one column, and every second row.
    static __device__ __forceinline__ void write_square(const float* square, const Target& target,
                                                        int first_row, int first_column,
                                                        const Epilogue& epilogue) {
        const int lane = threadIdx.x % 32;
        const int column = target.first_column + first_column + lane % 16;
        first_row += target.first_row + lane / 16;
        if (column >= target.columns) return;
        const size_t start = static_cast<size_t>(first_row) * target.columns + column;
        const int present = (target.rows - first_row + 1) / 2;  // of the lane's rows
        const size_t step = 2 * static_cast<size_t>(target.columns);
        float values[8], residual[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const bool exists = i < present;
            const float bias = exists ? channel_bias(epilogue, first_row + 2 * i) : 0.0f;
            values[i] = __fadd_rn(square[(lane / 16 + 2 * i) * sum_stride + lane % 16], bias);
            const bool added = exists && epilogue.residual != nullptr;
            residual[i] = added ? epilogue.residual[start + i * step] : 0.0f;
        }
        if (adds_first(epilogue)) add_all(values, residual);
        activate_all(values, epilogue);
        if (adds_last(epilogue)) add_all(values, residual);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i < present) target.y[start + i * step] = values[i];
        }
    }
};
