struct sums {
    int n;
    float first, second, start;
    int x_flip, w_flip, y_flip;
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

/* A sum of bytes of three scales. Products and sums are exact before they are rounded to float, as fma is. */
static void add_bytes(const void *x, const void *w, void *y, const struct sums *g)
{
    const unsigned char *one = x, *other = w;
    unsigned char *to = y;
    int i;
    for (i = 0; i < g->n; i++) {
        const int a = (one[i] ^ g->x_flip) - g->x_flip, b = (other[i] ^ g->w_flip) - g->w_flip;
        const float part = (float)((double)b * (double)g->second + (double)g->start);
        const float sum = (float)((double)a * (double)g->first + (double)part);
        to[i] = byte_of(sum, g->y_flip, g->y_flip);
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
