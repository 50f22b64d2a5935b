/* y[i] += w x[i stride] */
static void add_scaled(float *restrict y, const float *restrict x, float w, int n, int stride)
{
    int i;
    if (stride == 1) {
        for (i = 0; i < n; i++)
            y[i] += w * x[i];
    } else {
        for (i = 0; i < n; i++)
            y[i] += w * x[(size_t)i * (size_t)stride];
    }
}

/* The first column of a result whose window begins inside of the input, if it is moved by shift. */
static int first_inside(int shift, int stride)
{
    return shift < 0 ? (stride - 1 - shift) / stride : 0;
}

/* Behind the last such column. */
static int last_inside(int shift, int stride, int size, int result)
{
    const int left = size - 1 - shift;
    const int end = left < 0 ? 0 : left / stride + 1;
    return end < result ? end : result;
}

/* Adds to a row of the result what the row `line` of one channel gives, through a row of the kernel. */
static void add_line(float *row, const float *line, const float *weight, const struct window *g)
{
    int k;
    for (k = 0; k < g->kernel_x; k++) {
        const int shift = k * g->step_x - g->pad_x;
        const int begin = first_inside(shift, g->stride_x);
        const int end = last_inside(shift, g->stride_x, g->size_x, g->result_x);
        if (begin < end)
            add_scaled(row + begin, line + (begin * g->stride_x + shift), weight[k], end - begin, g->stride_x);
    }
}

/* Adds to a row of the result, number `at`, what the channels from x on give. */
static void add_window(float *row, const float *x, const float *weight, const struct window *g, int at)
{
    const size_t plane = (size_t)g->size_y * (size_t)g->size_x;
    const int depth = g->channels / g->groups;
    int c, k;
    for (c = 0; c < depth; c++) {
        for (k = 0; k < g->kernel_y; k++, weight += g->kernel_x) {
            const int line = at * g->stride_y + k * g->step_y - g->pad_y;
            if (line >= 0 && line < g->size_y)
                add_line(row, x + (size_t)c * plane + (size_t)line * (size_t)g->size_x, weight, g);
        }
    }
}

/* Filters [first, first + count) of a convolution; weight begins with the first of them. addend may be y. */
static void convolve(const float *x, const float *weight, const float *bias, float *y, const struct window *g,
                     int first, int count, const float *addend, each function, float a, float b)
{
    const size_t plane = (size_t)g->size_y * (size_t)g->size_x;
    const int depth = g->channels / g->groups, together = g->filters / g->groups;
    const size_t taps = (size_t)depth * (size_t)g->kernel_y * (size_t)g->kernel_x;
    const size_t width = (size_t)g->result_x;
    int n, f, at;
    for (n = 0; n < g->batch; n++) {
        for (f = first; f < first + count; f++) {
            const float *from = x + ((size_t)n * (size_t)g->channels + (size_t)(f / together * depth)) * plane;
            const float begin = bias ? bias[f] : 0.0f;
            size_t place = ((size_t)n * (size_t)g->filters + (size_t)f) * (size_t)g->result_y * width, i;
            for (at = 0; at < g->result_y; at++, place += width) {
                for (i = 0; i < width; i++)
                    y[place + i] = addend ? begin + addend[place + i] : begin;
                add_window(y + place, from, weight + (size_t)(f - first) * taps, g, at);
                if (function)
                    function(y + place, width, a, b);
            }
        }
    }
}
