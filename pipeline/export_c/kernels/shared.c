/* A function of each of n numbers, with two numbers of its own. */
typedef void (*each)(float *y, size_t n, float a, float b);

struct window {
    int batch, channels, filters, groups;
    int size_y, size_x, result_y, result_x;
    int kernel_y, kernel_x, stride_y, stride_x, step_y, step_x, pad_y, pad_x;
    int line, plane, part; /* from row to row, from channel to channel; part: only the rows that are needed are there */
};

struct averaging {
    int batch, channels, filters, groups;
    int size_y, size_x, result_y, result_x;
    int kernel_y, kernel_x, stride_y, stride_x, step_y, step_x, pad_y, pad_x;
    int end_y, end_x, counts_padding; /* where what is counted ends */
};

struct matrix {
    int rows, depth, outputs;
};

struct planes {
    int batch, channels, plane;
};

struct pairs {
    int size[6], first[6], second[6];
};

struct copying {
    int size[6], from[6], to[6], start, place;
};

struct resizing {
    int planes, size_y, size_x, result_y, result_x;
};

/* What lies at the caller: rows of pixels of his image, from one to the next so many numbers. */
struct view {
    int size_y, size_x, channels, line, pixel, channel;
    int row, column; /* where it begins in the whole image */
    int stride, pad, span; /* rows [stride i - pad, stride i - pad + span) are needed for row i of the result */
    float scale;
    int zero, flip;
};

/* Puts row `row`, from `column` on, `columns` numbers of each channel, at `to`, one channel after the other. */
typedef int (*pixels_of)(void *context, int row, int column, int columns, float *to);

/* The same of bytes. */
typedef int (*bytes_of)(void *context, int row, int column, int columns, void *to);

/* The first row of what lies before that rows from `row` on need. */
static int first_row(int row, int stride, int pad)
{
    return row * stride > pad ? row * stride - pad : 0;
}

/* Behind the last one, for the row before `end`. */
static int last_row(int end, int stride, int pad, int span, int size)
{
    const int last = (end - 1) * stride - pad + span;
    return last < size ? last : size;
}
