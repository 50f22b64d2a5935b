// Loaders: they take a tile's part of a matrix for the next K numbers k from global memory into
// registers (fetch), and from there into shared memory (store), where `put` says how it lies: it
// takes one number, or four along k or across k, by (k, row or column).
//
// Where fewer than K numbers k are left, the others are zeros. Rows and columns that the matrix
// does not have are read from the last ones that it has: what they add to is never written.
#pragma once

#include "opaque.cuh"

// A matrix whose rows are contiguous along k, such as weights [filters][k]; `Span` rows of it. Two
// threads next to each other read 8 numbers of a row: a warp reads whole sectors of 32 bytes, and
// what it stores across k lies in as many banks as it has lanes.
template <int Span, int K, int Threads> struct AlongK {
    static constexpr int held_fours = Span * K / 4 / Threads;
    // The threads cover `at_once` times 8 numbers of each row at once (0: not of all rows); a thread
    // has fours in `held_rows` rows, the next ones in a row `k_step` numbers behind the first.
    static constexpr int at_once = Threads / (2 * Span);
    static constexpr int held_rows = at_once ? 1 : 2 * Span / Threads;
    static constexpr int k_step = at_once ? at_once * 8 : 8;
    static_assert(held_fours * Threads * 4 == Span * K && held_fours % held_rows == 0);
    static_assert(at_once ? Threads % (2 * Span) == 0 : 2 * Span % Threads == 0);
    const float* from[held_rows];
    int whole;  // where this many numbers k are left, they are read by fours
    float4 held[held_fours];

    // `first`: row of the tile, followed by rows - 1 others that are `stride` numbers apart.
    __device__ __forceinline__ AlongK(const float* first, int stride, int rows) {
        // Every row begins at a multiple of 16 bytes.
        const bool aligned = stride % 4 == 0 && reinterpret_cast<size_t>(first) % 16 == 0;
        whole = aligned ? K : 0x7fffffff;
#pragma unroll
        for (int i = 0; i < held_rows; ++i) {
            from[i] = opaque(first + static_cast<long long>(min(row(i), rows - 1)) * stride + k(i));
        }
    }

    static __device__ __forceinline__ int row(int i) {
        const int pair = threadIdx.x / 2;
        return (at_once > 1 ? pair % Span : pair) + i % held_rows * (Threads / 2);
    }
    static __device__ __forceinline__ int k(int i) {
        const int pair = threadIdx.x / 2, first = threadIdx.x % 2 * 4;
        return (at_once > 1 ? first + pair / Span * 8 : first) + i / held_rows * k_step;
    }
    __device__ __forceinline__ const float* four(int i) const {
        return from[i % held_rows] + i / held_rows * k_step;
    }

    __device__ __forceinline__ void fetch(int left) {
        if (left >= whole) {
#pragma unroll
            for (int i = 0; i < held_fours; ++i) {
                held[i] = __ldg(reinterpret_cast<const float4*>(four(i)));
            }
        } else {
#pragma unroll
            for (int i = 0; i < held_fours; ++i) held[i] = fetch_some(four(i), left - k(i));
        }
#pragma unroll
        for (int i = 0; i < held_rows; ++i) from[i] += K;
    }

    static __device__ __forceinline__ float4 fetch_some(const float* at, int left) {
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (left > 0) four.x = __ldg(at);
        if (left > 1) four.y = __ldg(at + 1);
        if (left > 2) four.z = __ldg(at + 2);
        if (left > 3) four.w = __ldg(at + 3);
        return four;
    }

    template <class Put> __device__ __forceinline__ void store(Put put) const {
#pragma unroll
        for (int i = 0; i < held_fours; ++i) put.along_k(k(i), row(i), held[i]);
    }
};

template <int Width> struct Unit;
template <> struct Unit<1> { using Type = float; };
template <> struct Unit<4> { using Type = float4; };

// A matrix whose numbers for one k are contiguous, such as the pixels [k][pixels] of a 1x1
// convolution; `Span` columns of it, read `Width` (4 or 1) at a time. Neighbouring threads read
// neighbours.
template <int Width, int Span, int K, int Threads> struct AcrossK {
    static constexpr int held_units = Span / Width * K / Threads;
    static constexpr int step = Threads / (Span / Width);  // from k to k of what a thread holds
    static_assert(held_units > 0 && Threads % (Span / Width) == 0);
    using Type = typename Unit<Width>::Type;
    const float* from;
    int stride;
    Type held[held_units];

    // `first`: column of the tile, followed by columns - 1 others; numbers k are `stride` apart.
    __device__ __forceinline__ AcrossK(const float* first, int k_stride, int columns)
        : stride(k_stride) {
        const int nearest = min(column(), columns - Width);
        from = opaque(first + static_cast<long long>(k()) * stride + nearest);
    }

    // Whether a matrix of `columns` consists of whole fours at multiples of 16 bytes.
    static __device__ __forceinline__ bool allowed(const float* matrix, int columns) {
        return Width == 1 || (columns % 4 == 0 && reinterpret_cast<size_t>(matrix) % 16 == 0);
    }

    // The first k and the first column that this thread holds.
    static __device__ __forceinline__ int k() { return threadIdx.x / (Span / Width); }
    static __device__ __forceinline__ int column() { return threadIdx.x % (Span / Width) * Width; }

    __device__ __forceinline__ const Type* unit(int i) const {
        return reinterpret_cast<const Type*>(from + static_cast<long long>(stride) * (i * step));
    }

    __device__ __forceinline__ void fetch(int left) {
        if (left >= K) {
#pragma unroll
            for (int i = 0; i < held_units; ++i) held[i] = __ldg(unit(i));
        } else {
#pragma unroll
            for (int i = 0; i < held_units; ++i) {
                held[i] = k() + i * step < left ? __ldg(unit(i)) : Type{};
            }
        }
        from += static_cast<long long>(stride) * K;
    }

    template <class Put> __device__ __forceinline__ void store(Put put) const {
#pragma unroll
        for (int i = 0; i < held_units; ++i) {
            if constexpr (Width == 4) {
                put.across_k(k() + i * step, column(), held[i]);
            } else {
                put.one(k() + i * step, column(), held[i]);
            }
        }
    }
};
