/* Channels [first, first + count) inside of a bottleneck: each is made (wide), convolved by itself (thin), and added
   to all rows [row, row + rows) of the result. weight has for each what makes it, its own kernel, each behind a bias,
   and what it is multiplied by for each filter of the result. */
static void bottleneck(const float *x, const float *weight, const float *bias, float *y, float *wide_rows,
                       float *thin_rows, const struct window *wide, const struct window *thin,
                       const struct window *result, int first, int count, int row, int rows, each wide_function,
                       float wide_a, float wide_b, each thin_function, float thin_a, float thin_b, const float *addend,
                       each function, float a, float b)
{
    const int begin = first_row(row, thin->stride_y, thin->pad_y);
    const int span = (thin->kernel_y - 1) * thin->step_y + 1;
    const int end = last_row(row + rows, thin->stride_y, thin->pad_y, span, thin->size_y);
    const int from = wide->part ? first_row(begin, wide->stride_y, wide->pad_y) : 0;
    const size_t plane = (size_t)result->result_y * (size_t)result->result_x;
    const size_t start = (size_t)row * (size_t)result->result_x, n = (size_t)rows * (size_t)result->result_x;
    const int channels = result->channels;
    int c, f;
    size_t i;
    for (f = 0; f < result->filters && first == 0; f++)
        for (i = (size_t)f * plane + start; i < (size_t)f * plane + start + n; i++)
            y[i] = addend ? (bias ? bias[f] : 0.0f) + addend[i] : (bias ? bias[f] : 0.0f);
    for (c = first; c < first + count; c++) {
        const float *own = weight + 1 + (size_t)wide->channels * (size_t)wide->kernel_y * (size_t)wide->kernel_x;
        make_rows(x, from, weight + 1, weight[0], NULL, wide_rows, wide, begin, end - begin, wide_function, wide_a,
                  wide_b);
        make_rows(wide_rows, begin, own + 1, own[0], NULL, thin_rows, thin, row, rows, thin_function, thin_a, thin_b);
        weight = own + 1 + (size_t)thin->kernel_y * (size_t)thin->kernel_x;
        for (f = 0; f < result->filters; f++)
            add_scaled(y + (size_t)f * plane + start, thin_rows, *weight++, (int)n, 1);
    }
    for (f = 0; f < result->filters && function && first + count == channels; f++)
        function(y + (size_t)f * plane + start, n, a, b);
}
