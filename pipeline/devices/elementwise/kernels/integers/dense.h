// One convolution that reads all channels: some filters at a time, all of its pixels or a part of them.
//
// Where only maxima of its results are wanted, it keeps as many rows as a window has.
#ifndef INTEGERS_DENSE_H
#define INTEGERS_DENSE_H

#include "addition.h"
#include "rows.h"

// Filters of a dense layer that are packed.
struct packed {
    const struct layer *of;
    struct laid laid;
    tap *panels;
    uint8_t *turned;
    int32_t *fixed;
    float *factors;
    int first, n, has_zeros;
};

// Memory for `most` filters; `panels`: there is some for these.
static struct packed open_packed(const struct source *source, int most, tap *panels, struct memory *memory) {
    const struct layer *of = source->of;
    const size_t filters = rounded((size_t)most, LANES);
    struct packed found = {.of = of, .laid = source->laid, .panels = panels};
    found.turned = turned_bytes(of, &found.laid) ? take(memory, turned_bytes(of, &found.laid)) : NULL;
    found.fixed = take(memory, filters * sizeof *found.fixed);
    found.factors = take(memory, filters * sizeof *found.factors);
    found.has_zeros = memory->at && any_weight_zero(of);
    return found;
}

static void pack(struct packed *to, int first, int n) {
    const struct layer *of = to->of;
    to->first = first;
    to->n = n;
    memset(to->fixed, 0, rounded((size_t)n, LANES) * sizeof *to->fixed);
    pack_factors(of, first, n, to->factors);
    add_bias(of, first, n, to->fixed);
    for (int m = 0; m < n; m += LANES) {
        tap *panel = to->panels + (size_t)m * to->laid.total;
        const int filters = lesser(LANES, n - m);
        pack_panel(of, &to->laid, first + m, filters, 0, of->channels, to->turned, panel);
        add_fixed(of, to->has_zeros, &to->laid, first + m, filters, panel,
                  taps_of(of) * (size_t)of->channels, to->fixed + m);
    }
}

// Writes the packed filters of n pixels, `stride` bytes from one to the next.
static void make_tile(const struct packed *packed, const struct rounding *how, int n, const pixel **x,
                      const struct runs *runs, uint8_t *to, size_t stride) {
    const size_t across = (size_t)packed->of->kernel_x * packed->laid.depth;
    int32_t sums[TILE * LANES];
    for (int m = 0; m < packed->n; m += LANES) {
        const int filters = lesser(packed->n - m, LANES);
        multiply_tile(n, x, runs, packed->panels + (size_t)m * packed->laid.total, packed->fixed + m, 0, sums, LANES);
        for (int i = 0; packed->has_zeros && i < n; i++)
            take_weight_zeros(packed->of, packed->first + m, filters, x[i], runs, across, sums + i * LANES);
        round_pixels(n, sums, LANES, packed->factors + m, how, filters, to + m, stride);
    }
}

// Row `row` of the packed filters, `stride` bytes from pixel to pixel.
static void make_dense_row(struct source *source, const struct packed *packed, const struct rounding *how, int row,
                           uint8_t *to, size_t stride) {
    const pixel *x[TILE];
    ptrdiff_t steps[MOST_RUNS];
    const int width = packed->of->made_width;
    for (int j = 0, n; j < width; j += n) {
        n = next_tile(width - j);
        const struct runs runs = read_tile(source, row, j, n, steps, x);
        make_tile(packed, how, n, x, &runs, to + (size_t)j * stride, stride);
    }
}

// Rows of a layer under windows, of `group` filters each; `held` says which they are. Or one that is added.
struct strip {
    uint8_t *rows;
    int32_t *held;
    size_t line;
};

static struct strip open_strip(const struct task *task, struct memory *memory) {
    struct strip strip = {.line = (size_t)task->layers[0].made_width * (size_t)task->group};
    if (task->addition.other) strip.rows = take(memory, strip.line);
    if (!task->pool.kernel_y) return strip;
    strip.rows = take(memory, strip.line * (size_t)task->pool.kernel_y);
    strip.held = take(memory, (size_t)task->pool.kernel_y * sizeof *strip.held);
    return strip;
}

// Row `row` of the maxima of the packed filters, `stride` bytes from pixel to pixel.
static void make_maxima(struct source *source, const struct packed *packed, const struct rounding *how, int row,
                        struct strip *strip, uint8_t *to, size_t stride) {
    const struct pool *pool = &source->task->pool;
    const struct layer *of = source->of;
    const size_t group = (size_t)source->task->group, n = (size_t)packed->n;
    const int top = row * pool->stride_y - pool->above, flip = of->made.flip;
    const int first = greater(top, 0), end = lesser(top + pool->kernel_y, of->made_height);
    for (int y = first; y < end; y++) {
        const int slot = y % pool->kernel_y;
        if (strip->held[slot] == y) continue;
        make_dense_row(source, packed, how, y, strip->rows + (size_t)slot * strip->line, group);
        strip->held[slot] = y;
    }
    for (int j = 0; j < pool->made_width; j++, to += stride) {
        const int left = j * pool->stride_x - pool->left;
        const int from = greater(left, 0), until = lesser(left + pool->kernel_x, of->made_width);
        for (size_t m = 0; m < n; m += LANES) {
            uint8_t most[LANES] = {0};
            for (int y = first; y < end; y++) {
                const uint8_t *at = strip->rows + (size_t)(y % pool->kernel_y) * strip->line + (size_t)from * group + m;
                for (int x = from; x < until; x++, at += group) {
                    for (int c = 0; c < LANES; c++) most[c] = most[c] < at[c] ? at[c] : most[c];
                }
            }
            for (int c = 0; c < LANES; c++) most[c] ^= (uint8_t)flip;
            memcpy(to + m, most, n - m < LANES ? n - m : LANES);
        }
    }
}

// Looks up n bytes of each of some pixels, `stride` bytes from one to the next.
static void look_up(const uint8_t *table, int pixels, size_t n, uint8_t *at, size_t stride) {
    for (int j = 0; j < pixels; j++, at += stride) {
        for (size_t m = 0; m < n; m++) at[m] = table[at[m]];
    }
}

// Adds another tensor to n bytes of each of some pixels; what is made may lie over that one.
static void add_row(const struct addition *by, const struct factors *with, const uint8_t *own, size_t own_stride,
                    const uint8_t *other, int pixels, size_t n, uint8_t *to, size_t stride) {
    for (int j = 0; j < pixels; j++, own += own_stride, other += stride, to += stride) {
        for (size_t m = 0; m < n; m += LANES) {
            const size_t count = n - m < LANES ? n - m : LANES;
            uint8_t made[LANES];
            memcpy(made, own + m, count);
            add_other(by, with, other + m, count, made);
            memcpy(to + m, made, count);
        }
    }
}

// Filters that share one packing, and pixels, are divided among parts: filters where there are few pixels.
static int divides_filters(const struct task *task) {
    const struct layer *of = &task->layers[0];
    const int rows = task->end_row - task->first_row;
    return task->n_parts > 1 && !makes_rows(task) &&
           (rows < task->n_parts || rows * of->made_width < of->filters * 4);
}

// What a part takes.
static size_t dense(struct task *task, int part, uint8_t *at) {
    struct memory memory = {at, 0};
    struct source source = open_source(task, 1, &memory);
    tap *kept = take(&memory, source.laid.total * rounded((size_t)task->group, LANES) * sizeof *kept);
    struct packed packed = open_packed(&source, task->group, kept, &memory);
    struct strip strip = open_strip(task, &memory);
    if (!at) return memory.used;
    const struct layer *of = source.of;
    const int parts = task->n_parts, by_filters = divides_filters(task);
    const int panels = (of->filters + LANES - 1) / LANES, rows = task->end_row - task->first_row;
    const int first = by_filters ? panels * part / parts * LANES : 0;
    const int end = by_filters ? lesser(panels * (part + 1) / parts * LANES, of->filters) : of->filters;
    const int first_row = task->first_row + (by_filters ? 0 : rows * part / parts);
    const int end_row = task->first_row + (by_filters ? rows : rows * (part + 1) / parts);
    const int pools = task->pool.kernel_y;
    const struct rounding how = rounding_of(&of->made, NULL, pools ? 0 : of->made.flip);
    const size_t filters = (size_t)of->filters;
    const int width = pools ? task->pool.made_width : of->made_width;
    const size_t line = (size_t)width * filters;
    const int adds = task->addition.other != NULL;
    const struct factors with = adds ? factors_of(&task->addition) : (struct factors){0};
    for (int m = first; m < end; m += task->group) {
        pack(&packed, m, lesser(task->group, end - m));
        for (int k = 0; k < pools; k++) strip.held[k] = -1;
        for (int i = first_row; i < end_row; i++) {
            const size_t at_row = (size_t)i * line + (size_t)m, n = (size_t)packed.n;
            uint8_t *to = adds ? strip.rows : task->made + at_row;
            const size_t stride = adds ? (size_t)task->group : filters;
            if (pools) {
                make_maxima(&source, &packed, &how, i, &strip, to, stride);
            } else {
                make_dense_row(&source, &packed, &how, i, to, stride);
            }
            if (task->table) look_up(task->table, width, n, to, stride);
            if (adds) add_row(&task->addition, &with, to, stride, task->addition.other + at_row, width, n, task->made + at_row, filters);
        }
    }
    return memory.used;
}

#endif
