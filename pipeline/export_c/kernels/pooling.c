static void largest_of_windows(const float *x, float *y, const struct window *g, each function, float a, float b)
{
    const size_t plane = (size_t)g->size_y * (size_t)g->size_x;
    const int planes = g->batch * g->channels;
    int p, i, j, k, l;
    for (p = 0; p < planes; p++, x += plane) {
        for (i = 0; i < g->result_y; i++, y += g->result_x) {
            for (j = 0; j < g->result_x; j++) {
                float most = -INFINITY;
                int inside = 0;
                for (k = 0; k < g->kernel_y; k++) {
                    const int line = i * g->stride_y + k * g->step_y - g->pad_y;
                    if (line < 0 || line >= g->size_y)
                        continue;
                    for (l = 0; l < g->kernel_x; l++) {
                        const int column = j * g->stride_x + l * g->step_x - g->pad_x;
                        if (column >= 0 && column < g->size_x) {
                            const float v = x[(size_t)line * (size_t)g->size_x + (size_t)column];
                            most = v < most ? most : v;
                            inside = 1;
                        }
                    }
                }
                y[j] = inside ? most : -FLT_MAX; /* of padding alone: as ONNX Runtime has it */
            }
            if (function)
                function(y, (size_t)g->result_x, a, b);
        }
    }
}

static void average_of_windows(const float *x, float *y, const struct averaging *g, each function, float a, float b)
{
    const size_t plane = (size_t)g->size_y * (size_t)g->size_x;
    const int planes = g->batch * g->channels;
    int p, i, j, k, l;
    for (p = 0; p < planes; p++, x += plane) {
        for (i = 0; i < g->result_y; i++, y += g->result_x) {
            for (j = 0; j < g->result_x; j++) {
                float sum = 0.0f;
                int counted = 0;
                for (k = 0; k < g->kernel_y; k++) {
                    const int line = i * g->stride_y + k * g->step_y - g->pad_y;
                    for (l = 0; l < g->kernel_x; l++) {
                        const int column = j * g->stride_x + l * g->step_x - g->pad_x;
                        const int outside = line < 0 || line >= g->size_y || column < 0 || column >= g->size_x;
                        if (!outside)
                            sum += x[(size_t)line * (size_t)g->size_x + (size_t)column];
                        if (!outside || (g->counts_padding && line < g->end_y && column < g->end_x))
                            counted++;
                    }
                }
                y[j] = sum / (float)counted;
            }
            if (function)
                function(y, (size_t)g->result_x, a, b);
        }
    }
}

/* The average of each of `planes` arrays of n numbers. */
static void average_of_planes(const float *x, float *y, int planes, int n, each function, float a, float b)
{
    int p, i, k;
    for (p = 0; p < planes; p++, x += n) {
        float sum = 0.0f;
        for (i = 0; i < n; i += 64) {
            float part = 0.0f; /* sums of sums lose less than one long sum */
            for (k = i; k < n && k < i + 64; k++)
                part += x[k];
            sum += part;
        }
        y[p] = sum / (float)n;
    }
    if (function)
        function(y, (size_t)planes, a, b);
}

static void largest_of_planes(const float *x, float *y, int planes, int n, each function, float a, float b)
{
    int p, i;
    for (p = 0; p < planes; p++, x += n) {
        float most = x[0];
        for (i = 1; i < n; i++)
            most = x[i] < most ? most : x[i];
        y[p] = most;
    }
    if (function)
        function(y, (size_t)planes, a, b);
}
