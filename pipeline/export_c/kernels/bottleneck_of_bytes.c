/* Four bytes of weights as the 32 bits that they are, the lowest first. */
static uint32_t word_of(const int8_t *w)
{
    const unsigned char *byte = (const unsigned char *)w;
    return byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 | (uint32_t)byte[3] << 24;
}

/* Rows [row, row + rows) of a channel inside of a bottleneck: w is its bias (32 bits), the scale of its result (a
   float), and its weights. Returns what follows these. */
static const int8_t *channel_of_bytes(const void *x, int from, const int8_t *w, unsigned char *y, const struct bytes *g,
                                      int row, int rows)
{
    const uint32_t first = word_of(w), second = word_of(w + 4);
    int32_t bias;
    float scale;
    memcpy(&bias, &first, sizeof bias);
    memcpy(&scale, &second, sizeof scale);
    rows_of_bytes(x, from, w + 8, bias, scale, y, g, row, rows);
    return w + 8 + g->channels * g->kernel_y * g->kernel_x;
}

/* Adds to the sums of each of n pixels what `channels` of them give; weights of a channel lie `next` behind those of
   the one before. */
static void add_products(const unsigned char *x, int n, const int8_t *weight, int next, int32_t *sums, int channels,
                         const struct bytes *g)
{
    const int flip = g->x_flip, zero = g->x_zero, w_zero = g->w_zero;
    int i, c, f, k;
    for (i = 0; i < n; i++, x += g->x_pixel, sums += g->filters) {
        for (f = 0; f < g->filters; f += 16) {
            const int some = g->filters - f < 16 ? g->filters - f : 16;
            int32_t held[16] = {0}; /* memory of the arena has no type: it is copied */
            memcpy(held, sums + f, (size_t)some * sizeof *held);
            for (c = 0; c < channels; c++) {
                const int16_t v = (int16_t)((x[c] ^ flip) - zero);
                const int8_t *w = weight + (ptrdiff_t)c * next + f;
                if (some == 16)
                    for (k = 0; k < 16; k++)
                        held[k] += v * (int16_t)(w[k] - w_zero);
                else
                    for (k = 0; k < some; k++)
                        held[k] += v * (w[k] - w_zero);
            }
            memcpy(sums + f, held, (size_t)some * sizeof *held);
        }
    }
}

/* Channels [first, first + count) inside of a bottleneck, some at a time: they are made (wide), each is convolved by
   itself (thin), and all are added up in `sums`, of which the last call makes bytes. weight has for each channel what
   makes it, its own kernel, and what it is multiplied by for each filter. */
static void bottleneck_of_bytes(const void *x, const int8_t *weight, const int32_t *bias, const float *scale, void *y,
                                int32_t *sums, void *wide_rows, void *thin_rows, const struct bytes *wide,
                                const struct bytes *thin, const struct bytes *result, int first, int count, int row,
                                int rows)
{
    const int begin = first_row(row, thin->stride_y, thin->pad_y);
    const int span = (thin->kernel_y - 1) * thin->step_y + 1;
    const int end = last_row(row + rows, thin->stride_y, thin->pad_y, span, thin->size_y);
    const int from = wide->part ? first_row(begin, wide->stride_y, wide->pad_y) : 0;
    const int pixels = rows * result->result_x, together = thin->x_pixel, filters = result->filters;
    unsigned char *to = (unsigned char *)y + (size_t)row * (size_t)result->result_x * (size_t)filters;
    int c, f, i;
    if (first == 0)
        memset(sums, 0, (size_t)pixels * (size_t)filters * sizeof *sums);
    for (c = 0; c < count; c += together) {
        const int now = count - c < together ? count - c : together;
        const int8_t *factors = weight;
        for (f = 0; f < now; f++, weight = factors + filters) {
            unsigned char *wide_to = (unsigned char *)wide_rows + f;
            const int8_t *own = channel_of_bytes(x, from, weight, wide_to, wide, begin, end - begin);
            factors = channel_of_bytes(wide_to, begin, own, (unsigned char *)thin_rows + f, thin, row, rows);
        }
        i = 16 + wide->channels * wide->kernel_y * wide->kernel_x + thin->kernel_y * thin->kernel_x + filters;
        add_products(thin_rows, pixels, factors - (ptrdiff_t)(now - 1) * i, i, sums, now, result);
    }
    for (i = 0; i < pixels && first + count == result->channels; i++, sums += filters) {
        for (f = 0; f < filters; f++) {
            int32_t sum, start = 0;
            memcpy(&sum, sums + f, sizeof sum);
            if (bias)
                memcpy(&start, bias + f, sizeof start);
            *to++ = byte_of((float)(start + sum) * scale[f], result->y_zero, result->y_flip);
        }
    }
}
