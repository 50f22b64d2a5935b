// The product of matrices C = A B by tiles: what a block computes, and how its threads share it.
#pragma once

#include "write_tile.cuh"

// How a matrix lies in shared memory for sums in float32: k by k, so that a thread reads float4.
template <int Stride> struct FloatPut {
    float* to;
    __device__ __forceinline__ void one(int k, int i, float value) const {
        to[k * Stride + i] = value;
    }
    __device__ __forceinline__ void along_k(int k, int i, float4 four) const {
        float* first = to + k * Stride + i;
        first[0] = four.x, first[Stride] = four.y;
        first[2 * Stride] = four.z, first[3 * Stride] = four.w;
    }
    __device__ __forceinline__ void across_k(int k, int i, float4 four) const {
        *reinterpret_cast<float4*>(to + k * Stride + i) = four;
    }
};

template <int N> __device__ __forceinline__ void read_fours(const float* from, int apart,
                                                            float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i / 4 * apart);
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
}

// A block computes Rows x Columns of C, each thread ThreadRows x ThreadColumns of them; K is how far
// it goes along k between two barriers.
//
// A warp's lanes are 4 x 8 threads: with the 4 numbers of a float4 for each, a read of A shows 4
// addresses and one of B 8 that follow each other, free of bank conflicts. Half a warp sees 2 of A
// and all 8 of B, each in two lanes next to each other (B) or two apart (A): such halves are read
// at once, so that a read takes 2 cycles and not 4. A thread with 8 rows (or columns) has two such
// fours, as far apart as the fours of all threads reach.
template <int Rows, int Columns, int ThreadRows, int ThreadColumns, int K> struct Tile {
    static constexpr int rows = Rows, columns = Columns, k = K;
    static constexpr int thread_columns = ThreadColumns;
    static constexpr int down = Rows / ThreadRows, across = Columns / ThreadColumns;
    static constexpr int threads = down * across;
    static_assert(ThreadRows % 4 == 0 && ThreadColumns % 4 == 0);
    static_assert(down % 4 == 0 && across % 8 == 0);

    // The padding: matrices that are contiguous along k are written across, which hits few banks.
    static constexpr int a_stride = Rows + 4, b_stride = Columns + 4;
    struct alignas(16) Stage {
        float a[K * a_stride];
        float b[K * b_stride];
    };
    struct Sums {
        float of[ThreadRows][ThreadColumns];
    };

    static __device__ __forceinline__ int thread_row() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        return warp / (across / 8) * 4 + lane / 16 * 2 + lane % 2;
    }
    static __device__ __forceinline__ int thread_column() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        return warp % (across / 8) * 8 + lane / 2 % 8;
    }
    static __device__ __forceinline__ int row(int i) {
        return i / 4 * (4 * down) + thread_row() * 4 + i % 4;
    }
    static __device__ __forceinline__ int column(int j) {
        return j / 4 * (4 * across) + thread_column() * 4 + j % 4;
    }

    static __device__ __forceinline__ FloatPut<a_stride> put_a(Stage& stage) { return {stage.a}; }
    static __device__ __forceinline__ FloatPut<b_stride> put_b(Stage& stage) { return {stage.b}; }

    static __device__ __forceinline__ void multiply(const Stage& stage, Sums& sums) {
#pragma unroll
        for (int at = 0; at < K; ++at) {
            float a[ThreadRows], b[ThreadColumns];
            read_fours(stage.a + at * a_stride + thread_row() * 4, 4 * down, a);
            read_fours(stage.b + at * b_stride + thread_column() * 4, 4 * across, b);
#pragma unroll
            for (int i = 0; i < ThreadRows; ++i) {
#pragma unroll
                for (int j = 0; j < ThreadColumns; ++j) {
                    sums.of[i][j] = fmaf(a[i], b[j], sums.of[i][j]);
                }
            }
        }
    }

    // The rows go around in a ring of registers: one copy of the code is run for each, where
    // unrolling would put the epilogue into the kernel for every row.
    template <class Writer>
    static __device__ __forceinline__ void write(Sums& sums, Stage*, const Target& target,
                                                 const Writer& writer) {
#pragma unroll 1
        for (int i = 0; i < ThreadRows; ++i) {
            const int at = target.first_row + row(i);
            if (at < target.rows) writer.template write<Tile>(sums.of[0], target, at);
#pragma unroll
            for (int next = 1; next < ThreadRows; ++next) {
#pragma unroll
                for (int j = 0; j < ThreadColumns; ++j) sums.of[next - 1][j] = sums.of[next][j];
            }
        }
    }
};
