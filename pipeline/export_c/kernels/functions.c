static void relu(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = y[i] < 0.0f ? 0.0f : y[i];
}

static void leaky_relu(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = y[i] < 0.0f ? a * y[i] : y[i];
}

static void clip(float *y, size_t n, float a, float b)
{
    size_t i;
    for (i = 0; i < n; i++) {
        const float v = y[i] < a ? a : y[i];
        y[i] = v > b ? b : v;
    }
}

static float logistic(float x)
{
    const float e = expf(x < 0.0f ? x : -x); /* at most 1 */
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static void sigmoid(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = logistic(y[i]);
}

static void quick_gelu(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] *= logistic(a * y[i]);
}

static float tangent(float x)
{
    const float size = x < 0.0f ? -x : x, square = x * x;
    const float e = expf(-2.0f * size);
    if (size < 0.25f) /* where 1 - e would lose digits: Taylor's series */
        return x * (1.0f - square * (1.0f / 3 - square * (2.0f / 15 - square * (17.0f / 315))));
    return (x < 0.0f ? e - 1.0f : 1.0f - e) / (1.0f + e);
}

static void hyperbolic_tangent(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = tangent(y[i]);
}

static void hard_sigmoid(float *y, size_t n, float a, float b)
{
    size_t i;
    for (i = 0; i < n; i++) {
        const float v = a * y[i] + b;
        y[i] = v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;
    }
}

static void hard_swish(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++) {
        const float v = y[i] * (1.0f / 6) + 0.5f;
        y[i] *= v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;
    }
}

static void elu(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = y[i] < 0.0f ? a * (expf(y[i]) - 1.0f) : y[i];
}

static void celu(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = y[i] < 0.0f ? a * (expf(y[i] / a) - 1.0f) : y[i];
}

static void exponential(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = expf(y[i]);
}

static void negative(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = -y[i];
}

static void absolute(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = y[i] < 0.0f ? -y[i] : y[i];
}

static void reciprocal(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = 1.0f / y[i];
}

static void softsign(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] /= 1.0f + (y[i] < 0.0f ? -y[i] : y[i]);
}

/* Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: within 2e-7. */
static float error_of(float x)
{
    const float size = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.3275911f * size);
    const float sum = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float part = 1.0f - sum * expf(-size * size);
    return x < 0.0f ? -part : part;
}

static void error_function(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] = error_of(y[i]);
}

static void gelu(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] *= 0.5f * (1.0f + error_of(y[i] * 0.70710678f));
}

static void gelu_by_tangent(float *y, size_t n, float a, float b)
{
    size_t i;
    (void)a;
    (void)b;
    for (i = 0; i < n; i++)
        y[i] *= 0.5f * (1.0f + tangent(y[i] * (0.79788456f + 0.035677408f * y[i] * y[i])));
}
