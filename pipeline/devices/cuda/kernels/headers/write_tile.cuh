// From a thread's sums to the output: the epilogue, for all sums that it has of a row.
#pragma once

#include "epilogue.cuh"

// Rows (channels) of `columns` numbers; the tile begins at [first_row][first_column]. Aligned: a row
// is whole float4, in the output and in the residual.
struct Target {
    float* y;
    int rows, columns;
    int first_row, first_column;
    bool aligned;
};

__device__ __forceinline__ bool lies_in_fours(const float* address, int columns) {
    return columns % 4 == 0 && reinterpret_cast<size_t>(address) % 16 == 0;
}

__device__ __forceinline__ Target make_target(float* y, const Epilogue& epilogue, int rows,
                                              int columns, int first_row, int first_column) {
    const bool aligned = lies_in_fours(y, columns) && lies_in_fours(epilogue.residual, columns);
    return {y, rows, columns, first_row, first_column, aligned};
}

template <class T>
__device__ __forceinline__ void read_row(const float* row, const Target& target,
                                         float (&to)[T::thread_columns]) {
#pragma unroll
    for (int j = 0; j < T::thread_columns; j += 4) {
        const int column = target.first_column + T::column(j);
        if (target.aligned) {
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (column < target.columns) four = *reinterpret_cast<const float4*>(row + column);
            to[j] = four.x, to[j + 1] = four.y, to[j + 2] = four.z, to[j + 3] = four.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[j + i] = column + i < target.columns ? row[column + i] : 0.0f;
            }
        }
    }
}

template <class T>
__device__ __forceinline__ void store_row(const float (&from)[T::thread_columns],
                                          const Target& target, float* row) {
#pragma unroll
    for (int j = 0; j < T::thread_columns; j += 4) {
        const int column = target.first_column + T::column(j);
        if (target.aligned) {
            const float4 four = make_float4(from[j], from[j + 1], from[j + 2], from[j + 3]);
            if (column < target.columns) *reinterpret_cast<float4*>(row + column) = four;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (column + i < target.columns) row[column + i] = from[j + i];
            }
        }
    }
}

template <int N>
__device__ __forceinline__ void activate_all(float (&values)[N], const Epilogue& epilogue) {
    const int activation = epilogue.activation;
    // Costly ones run over the values in a ring of registers: one copy of the code, not N.
    if (is_piecewise_linear(activation)) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            values[j] = piecewise_linear(values[j], activation, epilogue.alpha, epilogue.beta);
        }
        return;
    }
#pragma unroll 1
    for (int turn = 0; turn < N; ++turn) {
        const float x = activate(values[0], activation, epilogue.alpha, epilogue.beta);
#pragma unroll
        for (int j = 1; j < N; ++j) values[j - 1] = values[j];
        values[N - 1] = x;
    }
}

template <int N>
__device__ __forceinline__ void add_all(float (&values)[N], const float (&addends)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = __fadd_rn(values[j], addends[j]);
}

struct EpilogueWriter {
    Epilogue epilogue;

    template <class T>
    __device__ __forceinline__ void write(float (&sums)[T::thread_columns], const Target& target,
                                          int row) const {
        const size_t start = static_cast<size_t>(row) * target.columns;
        const float bias = channel_bias(epilogue, row);
        float residual[T::thread_columns];
        if (epilogue.residual != nullptr) read_row<T>(epilogue.residual + start, target, residual);
#pragma unroll
        for (int j = 0; j < T::thread_columns; ++j) sums[j] = __fadd_rn(sums[j], bias);
        if (adds_first(epilogue)) add_all(sums, residual);
        activate_all(sums, epilogue);
        if (adds_last(epilogue)) add_all(sums, residual);
        store_row<T>(sums, target, target.y + start);
    }
};
