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
