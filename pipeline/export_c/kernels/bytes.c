struct byte_pairs {
    int size[6], first[6], second[6];
    float a, b, start;
    int x_zero, w_zero, x_flip, w_flip, y_flip;
};

struct window_averages {
    int batch, channels, filters, groups;
    int size_y, size_x, result_y, result_x;
    int kernel_y, kernel_x, stride_y, stride_x, step_y, step_x, pad_y, pad_x;
    int counts_padding;
    float x_scale, y_scale;
    int x_zero, x_flip, y_zero, y_flip;
};

struct averages {
    int batch, channels, plane;
    float scale;
    int pixel, channel, x_zero, x_flip, y_zero, y_flip;
};

/* The nearest whole number, of two the even one; v is far from the limits of int. Without branches, which a
   processor would guess wrong half of the time. */
static inline int nearest(float v)
{
    const int whole = (int)v, odd = whole & 1;
    const float rest = v - (float)whole;
    const int up = (rest > 0.5f) | ((rest == 0.5f) & odd);
    const int down = (rest < -0.5f) | ((rest == -0.5f) & odd);
    return whole + up - down;
}

/* v and a zero point as a byte, saturated. */
static inline unsigned char byte_of(float v, int zero, int flip)
{
    const float low = (float)-zero, high = (float)(255 - zero);
    v = v > low ? v : low;
    v = v < high ? v : high;
    return (unsigned char)((nearest(v) + zero) ^ flip);
}

static void quantize(const float *x, void *y, int n, float scale, int zero, int flip)
{
    unsigned char *to = y;
    int i;
    for (i = 0; i < n; i++)
        to[i] = byte_of(x[i] / scale, zero, flip);
}

static void dequantize(const void *x, float *y, int n, float scale, int zero, int flip)
{
    const unsigned char *from = x;
    int i;
    for (i = 0; i < n; i++)
        y[i] = (float)((from[i] ^ flip) - zero) * scale;
}

/* A row of results of two operands of bytes, each with its own step: 1, or 0 where it repeats. */
typedef void (*pairwise_bytes)(const unsigned char *x, int dx, const unsigned char *w, int dw, unsigned char *y,
                               const struct byte_pairs *g);

static void combine_bytes(const void *x, const void *w, void *y, const struct byte_pairs *g, pairwise_bytes operation)
{
    unsigned char *to = y;
    int at[5] = {0}, d;
    for (;;) {
        const unsigned char *from = x, *with = w;
        for (d = 0; d < 5; d++) {
            from += (size_t)at[d] * (size_t)g->first[d];
            with += (size_t)at[d] * (size_t)g->second[d];
        }
        operation(from, g->first[5], with, g->second[5], to, g);
        to += g->size[5];
        for (d = 4; d >= 0 && ++at[d] == g->size[d]; d--)
            at[d] = 0;
        if (d < 0)
            return;
    }
}

/* A sum of bytes of three scales. Products and sums are exact before they are rounded to float, as fma is. */
static void add_bytes(const unsigned char *x, int dx, const unsigned char *w, int dw, unsigned char *y,
                      const struct byte_pairs *g)
{
    int i;
    for (i = 0; i < g->size[5]; i++, x += dx, w += dw) {
        const int one = (*x ^ g->x_flip) - g->x_zero, other = (*w ^ g->w_flip) - g->w_zero;
        const float part = (float)((double)other * (double)g->b + (double)g->start);
        const float sum = (float)((double)one * (double)g->a + (double)part);
        y[i] = byte_of(sum, g->y_flip, g->y_flip);
    }
}

/* A product of bytes of three scales: it is rounded, and its sum with the zero point again. */
static void multiply_bytes(const unsigned char *x, int dx, const unsigned char *w, int dw, unsigned char *y,
                           const struct byte_pairs *g)
{
    int i;
    for (i = 0; i < g->size[5]; i++, x += dx, w += dw) {
        const int whole = ((*x ^ g->x_flip) - g->x_zero) * ((*w ^ g->w_flip) - g->w_zero);
        const float scaled = (float)whole * g->a;
        y[i] = byte_of((float)((double)scaled + (double)g->start), g->y_flip, g->y_flip);
    }
}

/* Channels lie last. */
static void largest_bytes(const void *x, void *y, const struct window *g, int flip)
{
    const unsigned char *from = x;
    unsigned char *to = y;
    const size_t channels = (size_t)g->channels;
    int n, i, j, k, l, c;
    for (n = 0; n < g->batch; n++, from += (size_t)g->size_y * (size_t)g->size_x * channels) {
        for (i = 0; i < g->result_y; i++) {
            for (j = 0; j < g->result_x; j++) {
                for (c = 0; c < g->channels; c++) {
                    int most = 0;
                    for (k = 0; k < g->kernel_y; k++) {
                        const int line = i * g->stride_y + k * g->step_y - g->pad_y;
                        for (l = 0; l < g->kernel_x; l++) {
                            const int column = j * g->stride_x + l * g->step_x - g->pad_x;
                            if (line >= 0 && line < g->size_y && column >= 0 && column < g->size_x) {
                                const size_t pixel = (size_t)line * (size_t)g->size_x + (size_t)column;
                                const int v = from[pixel * channels + (size_t)c] ^ flip;
                                most = v > most ? v : most;
                            }
                        }
                    }
                    *to++ = (unsigned char)(most ^ flip);
                }
            }
        }
    }
}

/* The average of each channel of bytes. */
static void average_bytes(const void *x, void *y, const struct averages *g)
{
    const unsigned char *from = x;
    unsigned char *to = y;
    int n, c, i;
    for (n = 0; n < g->batch; n++, from += (size_t)g->channels * (size_t)g->plane) {
        for (c = 0; c < g->channels; c++) {
            int32_t sum = 0;
            for (i = 0; i < g->plane; i++)
                sum += (from[(size_t)i * (size_t)g->pixel + (size_t)c * (size_t)g->channel] ^ g->x_flip) - g->x_zero;
            *to++ = byte_of((float)sum * g->scale, g->y_zero, g->y_flip);
        }
    }
}

static void look_up(const void *x, void *y, int n, const uint8_t *table)
{
    const unsigned char *from = x;
    unsigned char *to = y;
    int i;
    for (i = 0; i < n; i++)
        to[i] = table[from[i]];
}

/* The average of bytes under a window, of what lies inside: a sum of floats in the order of the pixels. */
static float average_of_bytes(const unsigned char *x, const struct window_averages *g, int top, int left)
{
    float sum = 0.0f;
    int count = 0, k, l;
    for (k = 0; k < g->kernel_y; k++) {
        for (l = 0; l < g->kernel_x; l++) {
            const int line = top + k * g->step_y, column = left + l * g->step_x;
            if (line >= 0 && line < g->size_y && column >= 0 && column < g->size_x) {
                const size_t pixel = (size_t)line * (size_t)g->size_x + (size_t)column;
                const int v = (x[pixel * (size_t)g->channels] ^ g->x_flip) - g->x_zero;
                sum += (float)((double)v * (double)g->x_scale);
                count++;
            }
        }
    }
    return sum / (float)(g->counts_padding ? g->kernel_y * g->kernel_x : count);
}

/* Channels lie last. */
static void average_windows_of_bytes(const void *x, void *y, const struct window_averages *g)
{
    const unsigned char *from = x;
    unsigned char *to = y;
    int n, i, j, c;
    for (n = 0; n < g->batch; n++, from += (size_t)g->size_y * (size_t)g->size_x * (size_t)g->channels) {
        for (i = 0; i < g->result_y; i++) {
            for (j = 0; j < g->result_x; j++) {
                for (c = 0; c < g->channels; c++) {
                    const int top = i * g->stride_y - g->pad_y, left = j * g->stride_x - g->pad_x;
                    const float average = average_of_bytes(from + c, g, top, left);
                    *to++ = byte_of(average / g->y_scale + (float)g->y_zero, g->y_flip, g->y_flip);
                }
            }
        }
    }
}

/* Softmax along n bytes that lie `inner` apart, `outer` times: powers are looked up, the largest byte's last.
   y may be x. */
static void softmax_of_bytes(const void *x, void *y, int outer, int n, int inner, float scale, int zero,
                             const float *powers)
{
    const size_t apart = (size_t)inner, block = (size_t)n * apart;
    const unsigned char *from = x;
    unsigned char *to = y;
    size_t i;
    int o, k;
    for (o = 0; o < outer; o++, from += block, to += block) {
        for (k = 0; k < inner; k++) {
            float sum = 0.0f;
            int shift = 255;
            for (i = (size_t)k; i < block; i += apart)
                shift = 255 - from[i] < shift ? 255 - from[i] : shift;
            for (i = (size_t)k; i < block; i += apart)
                sum += powers[from[i] + shift];
            for (i = (size_t)k; i < block; i += apart)
                to[i] = byte_of((float)((double)powers[from[i] + shift] * scale / sum), zero, 0);
        }
    }
}
