struct bytes {
    int batch, channels, filters, groups;
    int size_y, size_x, result_y, result_x;
    int kernel_y, kernel_x, stride_y, stride_x, step_y, step_x, pad_y, pad_x;
    int part;                                   /* only the rows that are needed are there */
    int x_pixel, x_channel, y_pixel, y_channel; /* bytes from one to the next */
    int x_zero, x_flip, w_zero, y_zero, y_flip;
};

/* The sum of n products of bytes that lie `apart` with weights that lie together. */
static int32_t product_of_bytes(const unsigned char *x, int apart, const int8_t *w, int n, const struct bytes *g)
{
    const int flip = g->x_flip, zero = g->x_zero, w_zero = g->w_zero;
    int32_t sum = 0;
    int i = 0, k;
    if (apart == 1) {
        for (; i + 16 <= n; i += 16) { /* compilers have instructions for sums of products of 16 bits */
            int32_t part = 0;
            for (k = 0; k < 16; k++)
                part += (int16_t)((x[i + k] ^ flip) - zero) * (int16_t)(w[i + k] - w_zero);
            sum += part;
        }
    }
    for (x += (size_t)i * (size_t)apart; i < n; i++, x += apart)
        sum += ((*x ^ flip) - zero) * (w[i] - w_zero);
    return sum;
}

/* What columns [begin, end) of a row of the kernel give, the first of them on `line`. */
static int32_t line_of_bytes(const unsigned char *line, const int8_t *w, const struct bytes *g, int begin, int end)
{
    const int depth = g->channels / g->groups, apart = g->step_x * g->x_pixel;
    int32_t sum = 0;
    int k;
    if (depth == 1) {
        for (k = begin; k < end; k++, line += apart)
            sum += ((*line ^ g->x_flip) - g->x_zero) * (w[k] - g->w_zero);
        return sum;
    }
    w += begin * depth;
    if (g->x_channel == 1 && apart == depth)
        return product_of_bytes(line, 1, w, (end - begin) * depth, g);
    for (k = begin; k < end; k++, line += apart, w += depth)
        sum += product_of_bytes(line, g->x_channel, w, depth, g);
    return sum;
}

/* Rows [row, row + rows) of one filter, each byte y_pixel from the one before; x begins with row `from`. */
static void rows_of_bytes(const unsigned char *x, int from, const int8_t *weight, int32_t begin, float scale,
                          unsigned char *y, const struct bytes *g, int row, int rows)
{
    const size_t line = (size_t)g->size_x * (size_t)g->x_pixel;
    const int taps = g->kernel_x * (g->channels / g->groups), span = (g->kernel_x - 1) * g->step_x + 1;
    int i, j, k, l;
    for (i = row; i < row + rows; i++) {
        int top = i * g->stride_y - g->pad_y, left = -g->pad_x, first = 0, last = g->kernel_y;
        const unsigned char *corner;
        while (top + first * g->step_y < 0 && first < last)
            first++;
        while (last > first && top + (last - 1) * g->step_y >= g->size_y)
            last--;
        top += first * g->step_y - from;
        corner = x + (ptrdiff_t)top * (ptrdiff_t)line;
        for (j = 0; j < g->result_x; j++, y += g->y_pixel, left += g->stride_x) {
            int32_t sum = begin;
            k = 0;
            l = g->kernel_x;
            if (left < 0 || left + span > g->size_x) {
                while (left + k * g->step_x < 0 && k < l)
                    k++;
                while (l > k && left + (l - 1) * g->step_x >= g->size_x)
                    l--;
            }
            if (k < l) {
                const unsigned char *at = corner + (ptrdiff_t)(left + k * g->step_x) * g->x_pixel;
                int n;
                for (n = first; n < last; n++, at += (size_t)g->step_y * line)
                    sum += line_of_bytes(at, weight + n * taps, g, k, l);
            }
            *y = byte_of((float)sum * scale, g->y_zero, g->y_flip);
        }
    }
}

/* Rows [row, row + rows) of filters [first, first + count) of a convolution of bytes; weight begins with the first. */
static void convolve_bytes(const void *x, const int8_t *weight, const int32_t *bias, const float *scale, void *y,
                           const struct bytes *g, int first, int count, int row, int rows)
{
    const int depth = g->channels / g->groups, together = g->filters / g->groups;
    const int from = g->part ? first_row(row, g->stride_y, g->pad_y) : 0;
    const int some = 1 + 16384 / (g->size_x * g->x_pixel * g->stride_y); /* whose input stays in a first cache */
    const size_t taps = (size_t)depth * (size_t)g->kernel_y * (size_t)g->kernel_x;
    const size_t image = (size_t)g->size_y * (size_t)g->size_x * (size_t)g->channels;
    const size_t made = (size_t)g->result_y * (size_t)g->result_x * (size_t)g->filters;
    int n, f, at;
    for (n = 0; n < g->batch; n++) {
        const unsigned char *image_of = (const unsigned char *)x + (size_t)n * image;
        for (at = row; at < row + rows; at += some) {
            const int now = row + rows - at < some ? row + rows - at : some;
            unsigned char *to = (unsigned char *)y + (size_t)n * made;
            to += (size_t)at * (size_t)g->result_x * (size_t)g->y_pixel;
            for (f = first; f < first + count; f++) {
                const unsigned char *part = image_of + (size_t)(f / together * depth) * (size_t)g->x_channel;
                int32_t begin = 0;
                if (bias)
                    memcpy(&begin, bias + f, sizeof begin);
                rows_of_bytes(part, from, weight + (size_t)(f - first) * taps, begin, scale[f],
                              to + (size_t)f * (size_t)g->y_channel, g, at, now);
            }
        }
    }
}

/* A row of the caller's image as bytes, the channels of a pixel side by side. */
static void quantize_line(const float *x, unsigned char *y, const struct view *g, int pixel, int channel)
{
    int i, c;
    for (i = 0; i < g->size_x; i++)
        for (c = 0; c < g->channels; c++)
            *y++ = byte_of(x[(size_t)i * (size_t)pixel + (size_t)c * (size_t)channel] / g->scale, g->zero, g->flip);
}

/* Rows of the caller's image that rows [row, row + rows) of the result need, as bytes to y. */
static void quantize_rows(const float *x, void *y, const struct view *g, int row, int rows)
{
    const int begin = first_row(row, g->stride, g->pad);
    const int end = last_row(row + rows, g->stride, g->pad, g->span, g->size_y);
    unsigned char *to = y;
    int line;
    for (line = begin; line < end; line++, to += (size_t)g->size_x * (size_t)g->channels)
        quantize_line(x + (size_t)line * (size_t)g->line, to, g, g->pixel, g->channel);
}

/* The same of an image that the caller gives row by row. */
static int quantize_pixels(pixels_of pixels, void *camera, float *at_once, void *y, const struct view *g, int row,
                           int rows)
{
    const int begin = first_row(row, g->stride, g->pad);
    const int end = last_row(row + rows, g->stride, g->pad, g->span, g->size_y);
    unsigned char *to = y;
    int line;
    for (line = begin; line < end; line++, to += (size_t)g->size_x * (size_t)g->channels) {
        if (pixels(camera, g->row + line, g->column, g->size_x, at_once))
            return 1;
        quantize_line(at_once, to, g, 1, g->size_x);
    }
    return 0;
}

/* A row of the caller's image of bytes, the channels of a pixel side by side. */
static void place_line(const unsigned char *x, unsigned char *y, const struct view *g, int pixel, int channel)
{
    int i, c;
    for (i = 0; i < g->size_x; i++)
        for (c = 0; c < g->channels; c++)
            *y++ = x[(size_t)i * (size_t)pixel + (size_t)c * (size_t)channel];
}

/* Rows of the caller's image of bytes that rows [row, row + rows) of the result need, to y. */
static void place_rows(const void *x, void *y, const struct view *g, int row, int rows)
{
    const int begin = first_row(row, g->stride, g->pad);
    const int end = last_row(row + rows, g->stride, g->pad, g->span, g->size_y);
    unsigned char *to = y;
    int line;
    for (line = begin; line < end; line++, to += (size_t)g->size_x * (size_t)g->channels)
        place_line((const unsigned char *)x + (size_t)line * (size_t)g->line, to, g, g->pixel, g->channel);
}

/* The same of an image that the caller gives row by row. */
static int place_pixels(bytes_of pixels, void *camera, void *at_once, void *y, const struct view *g, int row,
                        int rows)
{
    const int begin = first_row(row, g->stride, g->pad);
    const int end = last_row(row + rows, g->stride, g->pad, g->span, g->size_y);
    unsigned char *to = y;
    int line;
    for (line = begin; line < end; line++, to += (size_t)g->size_x * (size_t)g->channels) {
        if (pixels(camera, g->row + line, g->column, g->size_x, at_once))
            return 1;
        place_line(at_once, to, g, 1, g->size_x);
    }
    return 0;
}
