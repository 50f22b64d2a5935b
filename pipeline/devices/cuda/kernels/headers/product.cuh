// Products of matrices by tiles: either factor may be transposed; batches may share a factor.
#pragma once

#include "load.cuh"
#include "pipeline.cuh"
#include "tile.cuh"

// A product of matrices y[batch] = A[batch] B[batch], [rows][columns]. Strides count numbers from
// matrix to matrix (0: the same for all); those of the addend also from row to row and from column
// to column.
struct Product {
    int rows, columns, depth;
    int a_stride, b_stride;
    int addend_stride, addend_row_stride, addend_column_stride;
};

// y = activation of scale * sum + addend_scale * addend.
struct ProductWriter {
    const float* addend;
    int row_stride, column_stride;
    float scale, addend_scale;
    Epilogue epilogue;

    template <class T>
    __device__ __forceinline__ void write(float (&sums)[T::thread_columns], const Target& target,
                                          int row) const {
        const float* added = addend + static_cast<size_t>(row) * row_stride;
#pragma unroll
        for (int j = 0; j < T::thread_columns; ++j) {
            const int column = target.first_column + T::column(j);
            sums[j] = __fmul_rn(scale, sums[j]);
            if (addend != nullptr && column < target.columns) {
                sums[j] = fmaf(addend_scale, added[column * column_stride], sums[j]);
            }
        }
        activate_all(sums, epilogue);
        store_row<T>(sums, target, target.y + static_cast<size_t>(row) * target.columns);
    }
};

using ProductTile = Tile<64, 64, 8, 4, 16>;
static_assert(ProductTile::rows == ProductTile::columns);  // one loader for both factors
template <int Width>
using Across = AcrossK<Width, ProductTile::rows, ProductTile::k, ProductTile::threads>;
using Along = AlongK<ProductTile::rows, ProductTile::k, ProductTile::threads>;

// The loader of a factor for rows of A (columns of B) from `first` on, of `count` that there are.
// IsAcross: k by k in memory, [depth][count]; otherwise [count][depth].
template <bool IsAcross, int Width>
__device__ __forceinline__ auto factor(const float* matrix, int first, int count, int depth) {
    if constexpr (IsAcross) {
        return Across<Width>(matrix + first, count, count - first);
    } else {
        return Along(matrix + static_cast<size_t>(first) * depth, depth, count - first);
    }
}

struct ProductShared {
    ProductTile::Stage stages[2];
    int batch, first_row, first_column;  // until the sums are done, to leave them the registers
};

template <bool AcrossA, bool AcrossB, int Width>
__device__ __forceinline__ void add_products(const float* a, const float* b,
                                             const Product& shape, ProductShared& shared,
                                             int first_row, int first_column,
                                             ProductTile::Sums& sums) {
    auto left = factor<AcrossA, Width>(a, first_row, shape.rows, shape.depth);
    auto right = factor<AcrossB, Width>(b, first_column, shape.columns, shape.depth);
    accumulate<ProductTile>(shared.stages, left, right, shape.depth, sums);
}

// Blocks along x: tiles of rows (fastest), tiles of columns, batch.
template <bool AcrossA, bool AcrossB>
__device__ __forceinline__ void multiply(const float* a, const float* b, float* y,
                                         const Product& shape, ProductWriter writer) {
    __shared__ ProductShared shared;
    ProductTile::Sums sums = {};
    {
        const int row_tiles = (shape.rows + ProductTile::rows - 1) / ProductTile::rows;
        const int column_tiles = (shape.columns + ProductTile::columns - 1) / ProductTile::columns;
        const int column_tile = blockIdx.x / row_tiles, batch = column_tile / column_tiles;
        const int first_row = (blockIdx.x - column_tile * row_tiles) * ProductTile::rows;
        const int first_column = (column_tile - batch * column_tiles) * ProductTile::columns;
        if (threadIdx.x == 0) {
            shared.batch = batch;
            shared.first_row = first_row, shared.first_column = first_column;
        }
        a += static_cast<size_t>(batch) * shape.a_stride;
        b += static_cast<size_t>(batch) * shape.b_stride;
        const bool fours = (!AcrossA || Across<4>::allowed(a, shape.rows)) &&
                           (!AcrossB || Across<4>::allowed(b, shape.columns));
        if (fours) {
            add_products<AcrossA, AcrossB, 4>(a, b, shape, shared, first_row, first_column, sums);
        } else {
            add_products<AcrossA, AcrossB, 1>(a, b, shape, shared, first_row, first_column, sums);
        }
    }
    if (writer.addend != nullptr) {
        writer.addend += static_cast<size_t>(shared.batch) * shape.addend_stride;
    }
    y += static_cast<size_t>(shared.batch) * shape.rows * shape.columns;
    const Target target = make_target(y, writer.epilogue, shape.rows, shape.columns,
                                      shared.first_row, shared.first_column);
    ProductTile::write(sums, shared.stages, target, writer);
}
