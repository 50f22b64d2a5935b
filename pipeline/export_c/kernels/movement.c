/* Copies elements of `item` bytes, in up to six dimensions with steps of their own. */
static void copy(const void *x, void *y, const struct copying *g, size_t item)
{
    const char *from = (const char *)x + (size_t)g->start * item;
    char *to = (char *)y + (size_t)g->place * item;
    int at[5] = {0}, d, i;
    for (;;) {
        ptrdiff_t read = 0, write = 0;
        for (d = 0; d < 5; d++) {
            read += (ptrdiff_t)at[d] * g->from[d];
            write += (ptrdiff_t)at[d] * g->to[d];
        }
        read *= (ptrdiff_t)item;
        write *= (ptrdiff_t)item;
        if (g->from[5] == 1 && g->to[5] == 1) {
            memcpy(to + write, from + read, (size_t)g->size[5] * item);
        } else {
            for (i = 0; i < g->size[5]; i++)
                memcpy(to + write + (ptrdiff_t)i * g->to[5] * (ptrdiff_t)item,
                       from + read + (ptrdiff_t)i * g->from[5] * (ptrdiff_t)item, item);
        }
        for (d = 4; d >= 0 && ++at[d] == g->size[d]; d--)
            at[d] = 0;
        if (d < 0)
            return;
    }
}

static void fill(float *y, int n, float value)
{
    int i;
    for (i = 0; i < n; i++)
        y[i] = value;
}

/* Elements between two rows and two columns: which they are, and the part of the second. */
static void resize(const float *x, const int32_t *rows, const float *down, const int32_t *columns, const float *right,
                   float *y, const struct resizing *g, each function, float a, float b)
{
    const size_t line = (size_t)g->size_x, plane = line * (size_t)g->size_y;
    int p, i, j;
    for (p = 0; p < g->planes; p++, x += plane) {
        for (i = 0; i < g->result_y; i++, y += g->result_x) {
            const float *upper = x + (size_t)rows[2 * i] * line, *lower = x + (size_t)rows[2 * i + 1] * line;
            for (j = 0; j < g->result_x; j++) {
                const int left = columns[2 * j], other = columns[2 * j + 1];
                float v = upper[left];
                if (right[j] > 0.0f)
                    v = v * (1.0f - right[j]) + upper[other] * right[j];
                if (down[i] > 0.0f) {
                    float w = lower[left];
                    if (right[j] > 0.0f)
                        w = w * (1.0f - right[j]) + lower[other] * right[j];
                    v = v * (1.0f - down[i]) + w * down[i];
                }
                y[j] = v;
            }
            if (function)
                function(y, (size_t)g->result_x, a, b);
        }
    }
}
