// Planes of another size. Which elements a result reads, and with which weights, is in tables: they hold
// what all the ways to round and to place coordinates differ in.

// y[plane, i, j] = x[plane, rows[i], columns[j]], or `fill` where an index is negative.
extern "C" __global__ void pick(
    const float *x, float *y, const int *rows, const int *columns, int height, int width,
    int out_height, int out_width, unsigned count, float fill) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const unsigned line = index / out_width;
    const int row = rows[line % out_height], column = columns[index % out_width];
    x += (long long)(line / out_height) * height * width;
    y[index] = row < 0 || column < 0 ? fill : x[row * width + column];
}

// As a weighted sum of row_taps x column_taps elements; tables are [out, taps].
extern "C" __global__ void interpolate(
    const float *x, float *y, const int *rows, const float *row_weights, const int *columns,
    const float *column_weights, int height, int width, int out_height, int out_width, int row_taps,
    int column_taps, unsigned count) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const unsigned line = index / out_width;
    const int first_row = line % out_height * row_taps, first_column = index % out_width * column_taps;
    x += (long long)(line / out_height) * height * width;
    float total = 0.0f;
    for (int i = first_row; i < first_row + row_taps; ++i) {
        float across = 0.0f;
        for (int j = first_column; j < first_column + column_taps; ++j)
            across += column_weights[j] * x[rows[i] * width + columns[j]];
        total += row_weights[i] * across;
    }
    y[index] = total;
}
