/* A function of each of n numbers, with two numbers of its own. */
typedef void (*each)(float *y, size_t n, float a, float b);

struct window {
    int batch, channels, filters, groups;
    int size_y, size_x, result_y, result_x;
    int kernel_y, kernel_x, stride_y, stride_x, step_y, step_x, pad_y, pad_x;
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
