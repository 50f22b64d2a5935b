static float product(const float *x, const float *w, int n)
{
    float sums[8] = {0.0f};
    int i, k;
    for (i = 0; i + 8 <= n; i += 8)
        for (k = 0; k < 8; k++)
            sums[k] += x[i + k] * w[i + k];
    for (k = 0; k < 8 && i < n; i++, k++)
        sums[k] += x[i] * w[i];
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/* Outputs [first, first + count) of a product with a matrix that is stored by outputs. addend may be y. */
static void multiply(const float *x, const float *weight, const float *bias, float *y, const struct matrix *g,
                     int first, int count, const float *addend, each function, float a, float b)
{
    int r, o;
    for (r = 0; r < g->rows; r++) {
        const float *row = x + (size_t)r * (size_t)g->depth;
        const size_t place = (size_t)r * (size_t)g->outputs + (size_t)first;
        for (o = 0; o < count; o++) {
            float sum = product(row, weight + (size_t)o * (size_t)g->depth, g->depth);
            sum += bias ? bias[first + o] : 0.0f;
            y[place + (size_t)o] = addend ? sum + addend[place + (size_t)o] : sum;
        }
        if (function)
            function(y + place, (size_t)count, a, b);
    }
}

struct matrices {
    int batch, rows, depth, outputs;
    int x_row, x_item, w_matrix, w_item, w_output; /* numbers from one to the next */
    float scale;
};

/* Products of two tensors of matrices. */
static void multiply_tensors(const float *x, const float *w, float *y, const struct matrices *g, each function,
                             float a, float b)
{
    int n, r, o, k;
    for (n = 0; n < g->batch; n++, x += (size_t)g->rows * (size_t)g->depth, w += g->w_matrix) {
        for (r = 0; r < g->rows; r++, y += g->outputs) {
            for (o = 0; o < g->outputs; o++) {
                const float *from = x + (size_t)r * (size_t)g->x_row, *with = w + (size_t)o * (size_t)g->w_output;
                float sum = 0.0f;
                for (k = 0; k < g->depth; k++, from += g->x_item, with += g->w_item)
                    sum += *from * *with;
                y[o] = sum * g->scale;
            }
            if (function)
                function(y, (size_t)g->outputs, a, b);
        }
    }
}
