/* y[i] += w x[i stride] */
static void add_scaled(float *restrict y, const float *restrict x, float w, int n, int stride)
{
    int i = 0, k;
    if (stride == 1) {
        for (; i + 8 <= n; i += 8)
            for (k = 0; k < 8; k++)
                y[i + k] += w * x[i + k];
        for (; i < n; i++)
            y[i] += w * x[i];
    } else {
        for (; i < n; i++)
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

/* Adds to a row of the result, number `at`, what the channels from x on give, whose first row has the number `from`. */
static void add_window(float *row, const float *x, int from, const float *weight, const struct window *g, int at)
{
    const int depth = g->channels / g->groups;
    int c, k;
    for (c = 0; c < depth; c++, x += g->plane) {
        for (k = 0; k < g->kernel_y; k++, weight += g->kernel_x) {
            const int line = at * g->stride_y + k * g->step_y - g->pad_y;
            if (line >= 0 && line < g->size_y)
                add_line(row, x + (size_t)(line - from) * (size_t)g->line, weight, g);
        }
    }
}

/* Whether rows of the result are rows of the input, one behind the other: any number of them is one long row. */
static int is_flat(const struct window *g)
{
    return g->kernel_y == 1 && g->kernel_x == 1 && g->stride_y == 1 && g->stride_x == 1 && !g->pad_y && !g->pad_x
           && g->result_y == g->size_y && g->result_x == g->size_x && g->line == g->size_x;
}

/* Rows [row, row + rows) of one filter, to y; addend may be y. */
static void make_rows(const float *x, int from, const float *weight, float begin, const float *addend, float *y,
                      const struct window *g, int row, int rows, each function, float a, float b)
{
    const int depth = g->channels / g->groups, flat = is_flat(g);
    const int some = flat ? 1 + 2047 / g->result_x : 1; /* of a flat one as many as a first cache holds */
    int at, c;
    for (at = row; at < row + rows; at += some) {
        const int now = row + rows - at < some ? row + rows - at : some;
        const size_t n = (size_t)now * (size_t)g->result_x;
        size_t i;
        for (i = 0; i < n; i++)
            y[i] = addend ? begin + addend[i] : begin;
        if (flat)
            for (c = 0; c < depth; c++)
                add_scaled(y, x + (size_t)c * (size_t)g->plane + (size_t)(at - from) * (size_t)g->line, weight[c],
                           (int)n, 1);
        else
            add_window(y, x, from, weight, g, at);
        if (function)
            function(y, n, a, b);
        y += n;
        addend = addend ? addend + n : NULL;
    }
}

/* Rows [row, row + rows) of filters [first, first + count) of a convolution; weight begins with the first of them.
   addend may be y. */
static void convolve(const float *x, const float *weight, const float *bias, float *y, const struct window *g,
                     int first, int count, int row, int rows, const float *addend, each function, float a, float b)
{
    const int depth = g->channels / g->groups, together = g->filters / g->groups;
    const int from = g->part ? first_row(row, g->stride_y, g->pad_y) : 0;
    const size_t taps = (size_t)depth * (size_t)g->kernel_y * (size_t)g->kernel_x;
    int n, f;
    for (n = 0; n < g->batch; n++) {
        for (f = first; f < first + count; f++) {
            const size_t channel = (size_t)n * (size_t)g->channels + (size_t)(f / together * depth);
            const size_t line = ((size_t)n * (size_t)g->filters + (size_t)f) * (size_t)g->result_y + (size_t)row;
            const size_t place = line * (size_t)g->result_x;
            make_rows(x + channel * (size_t)g->plane, from, weight + (size_t)(f - first) * taps, bias ? bias[f] : 0.0f,
                      addend ? addend + place : NULL, y + place, g, row, rows, function, a, b);
        }
    }
}

/* Adds to row `at` of one filter's result what the channels from x on spread to it. */
static void add_spread(float *row, const float *x, const float *weight, const struct window *g, int at)
{
    const int depth = g->channels / g->groups;
    int c, k, l, j;
    for (c = 0; c < depth; c++, x += g->plane) {
        for (k = 0; k < g->kernel_y; k++, weight += g->kernel_x) {
            const int from = at + g->pad_y - k * g->step_y, line = from / g->stride_y;
            if (from < 0 || from % g->stride_y || line >= g->size_y)
                continue;
            for (l = 0; l < g->kernel_x; l++) {
                const float *read = x + (size_t)line * (size_t)g->line;
                const int shift = l * g->step_x - g->pad_x;
                for (j = first_inside(shift, g->stride_x); j < g->size_x; j++) {
                    const int place = j * g->stride_x + shift;
                    if (place >= g->result_x)
                        break;
                    row[place] += weight[l] * read[j];
                }
            }
        }
    }
}

/* Filters [first, first + count) of a convolution that is turned round: each element is spread over a window of the
   result. addend may be y. */
static void convolve_transposed(const float *x, const float *weight, const float *bias, float *y,
                                const struct window *g, int first, int count, const float *addend, each function,
                                float a, float b)
{
    const int depth = g->channels / g->groups, together = g->filters / g->groups;
    const size_t taps = (size_t)depth * (size_t)g->kernel_y * (size_t)g->kernel_x, n = (size_t)g->result_x;
    int batch, f, at;
    for (batch = 0; batch < g->batch; batch++) {
        for (f = first; f < first + count; f++) {
            const size_t channel = (size_t)batch * (size_t)g->channels + (size_t)(f / together * depth);
            const size_t line = ((size_t)batch * (size_t)g->filters + (size_t)f) * (size_t)g->result_y;
            for (at = 0; at < g->result_y; at++) {
                const size_t place = (line + (size_t)at) * n;
                float *row = y + place;
                size_t i;
                for (i = 0; i < n; i++)
                    row[i] = (bias ? bias[f] : 0.0f) + (addend ? addend[place + i] : 0.0f);
                add_spread(row, x + channel * (size_t)g->plane, weight + (size_t)(f - first) * taps, g, at);
                if (function)
                    function(row, n, a, b);
            }
        }
    }
}

/* Rows of the caller's image that rows [row, row + rows) of the result need, to y: a row of each channel, then the
   next row. */
static int copy_pixels(pixels_of pixels, void *camera, float *y, const struct view *g, int row, int rows)
{
    const int begin = first_row(row, g->stride, g->pad);
    const int end = last_row(row + rows, g->stride, g->pad, g->span, g->size_y);
    int line;
    for (line = begin; line < end; line++, y += (size_t)g->size_x * (size_t)g->channels)
        if (pixels(camera, g->row + line, g->column, g->size_x, y))
            return 1;
    return 0;
}
