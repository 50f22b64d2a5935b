static void apply(const float *x, float *y, int n, each function, float a, float b)
{
    if (x != y)
        memcpy(y, x, (size_t)n * sizeof *y);
    function(y, (size_t)n, a, b);
}

/* A row of results of two operands, each with its own step: 1, or 0 where it repeats. */
typedef void (*pairwise)(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n);

static void combine(const float *x, const float *w, float *y, const struct pairs *g, pairwise operation,
                    each function, float a, float b)
{
    const size_t n = (size_t)g->size[5];
    int at[5] = {0}, d;
    for (;;) {
        const float *from = x, *with = w;
        for (d = 0; d < 5; d++) {
            from += (size_t)at[d] * (size_t)g->first[d];
            with += (size_t)at[d] * (size_t)g->second[d];
        }
        operation(from, (size_t)g->first[5], with, (size_t)g->second[5], y, n);
        if (function)
            function(y, n, a, b);
        y += n;
        for (d = 4; d >= 0 && ++at[d] == g->size[d]; d--)
            at[d] = 0;
        if (d < 0)
            return;
    }
}

static void add(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = x[i * dx] + w[i * dw];
}

static void subtract(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = x[i * dx] - w[i * dw];
}

static void multiply_each(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = x[i * dx] * w[i * dw];
}

static void divide(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = x[i * dx] / w[i * dw];
}

static void modulo(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = fmodf(x[i * dx], w[i * dw]);
}

static void scale_negative(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = x[i * dx] < 0.0f ? x[i * dx] * w[i * dw] : x[i * dx];
}

static void larger(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = x[i * dx] >= w[i * dw] || x[i * dx] != x[i * dx] ? x[i * dx] : w[i * dw];
}

static void smaller(const float *x, size_t dx, const float *w, size_t dw, float *y, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        y[i] = x[i * dx] <= w[i * dw] || x[i * dx] != x[i * dx] ? x[i * dx] : w[i * dw];
}

/* A factor and a term for each channel. */
static void scale_channels(const float *x, const float *factor, const float *term, float *y, const struct planes *g,
                           each function, float a, float b)
{
    int n, c, i;
    for (n = 0; n < g->batch; n++) {
        for (c = 0; c < g->channels; c++, x += g->plane, y += g->plane) {
            for (i = 0; i < g->plane; i++)
                y[i] = x[i] * factor[c] + term[c];
            if (function)
                function(y, (size_t)g->plane, a, b);
        }
    }
}

/* By Newton's method; v is not negative. */
static float square_root(float v)
{
    uint32_t bits;
    float y;
    int i;
    if (!(v > 0.0f))
        return v;
    memcpy(&bits, &v, sizeof bits);
    bits = (bits >> 1) + 0x1fc00000u; /* half the exponent */
    memcpy(&y, &bits, sizeof y);
    for (i = 0; i < 4; i++)
        y = 0.5f * (y + v / y);
    return y;
}

/* Rows of n numbers: each less their mean, over their deviation, by a factor and with a term. y may be x. */
static void normalise_rows(const float *x, const float *factor, const float *term, float *y, int rows, int n,
                           float epsilon, each function, float a, float b)
{
    int r, i;
    for (r = 0; r < rows; r++, x += n, y += n) {
        float sum = 0.0f, squares = 0.0f, mean, scale;
        for (i = 0; i < n; i++)
            sum += x[i];
        mean = sum / (float)n;
        for (i = 0; i < n; i++)
            squares += (x[i] - mean) * (x[i] - mean);
        scale = 1.0f / square_root(squares / (float)n + epsilon);
        for (i = 0; i < n; i++)
            y[i] = (x[i] - mean) * scale * factor[i] + (term ? term[i] : 0.0f);
        if (function)
            function(y, (size_t)n, a, b);
    }
}

/* Along n numbers that lie `inner` apart, `outer` times. y may be x. */
static void softmax(const float *x, float *y, int outer, int n, int inner)
{
    const size_t apart = (size_t)inner, block = (size_t)n * apart;
    size_t i;
    int o, k;
    for (o = 0; o < outer; o++, x += block, y += block) {
        for (k = 0; k < inner; k++) {
            float most = x[k], sum = 0.0f;
            for (i = (size_t)k; i < block; i += apart)
                most = x[i] < most ? most : x[i];
            for (i = (size_t)k; i < block; i += apart) {
                y[i] = expf(x[i] - most);
                sum += y[i];
            }
            for (i = (size_t)k; i < block; i += apart)
                y[i] /= sum;
        }
    }
}
