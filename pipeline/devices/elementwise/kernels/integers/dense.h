// One convolution that reads all channels: some filters at a time, all of its pixels or a part of them.
#ifndef INTEGERS_DENSE_H
#define INTEGERS_DENSE_H

#include "rows.h"

// Filters of a dense layer that are packed.
struct packed {
    tap *panels;
    uint8_t *turned;
    int32_t *fixed;
    float *factors;
    int first, n, has_zeros;
    size_t total, panel;  // inputs of each, taps from one panel to the next
};

static struct packed open_packed(const struct layer *of, int most, struct memory *memory) {
    const size_t filters = rounded((size_t)most, LANES), total = taps_of(of) * (size_t)of->channels;
    struct packed found = {.total = total, .panel = rounded(total, TOGETHER) * LANES};
    found.turned = turned_bytes(of) ? take(memory, turned_bytes(of)) : NULL;
    found.panels = take(memory, found.panel * (filters / LANES) * sizeof *found.panels);
    found.fixed = take(memory, filters * sizeof *found.fixed);
    found.factors = take(memory, filters * sizeof *found.factors);
    return found;
}

static void pack(struct packed *to, const struct layer *of, int first, int n) {
    to->first = first;
    to->n = n;
    to->has_zeros = any_weight_zero(of);
    memset(to->fixed, 0, rounded((size_t)n, LANES) * sizeof *to->fixed);
    pack_factors(of, first, n, to->factors);
    add_bias(of, first, n, to->fixed);
    for (int m = 0; m < n; m += LANES) {
        tap *panel = to->panels + (size_t)(m / LANES) * to->panel;
        pack_panel(of, first + m, lesser(n - m, LANES), 0, of->channels, to->turned, panel);
        add_fixed(of, first + m, lesser(n - m, LANES), panel, to->total, to->fixed + m);
    }
}

// Writes the packed filters of n pixels, `stride` bytes from one to the next.
static void make_tile(const struct packed *packed, const struct layer *of, const struct rounding *how, int n,
                      const pixel **x, uint8_t *to, size_t stride) {
    int32_t sums[TILE * LANES];
    // A tile that is nearly whole takes no longer than a whole one.
    const int computed = n > TILE / 2 ? TILE : n;
    for (int i = n; i < computed; i++) x[i] = x[n - 1];
    for (int m = 0; m < packed->n; m += LANES) {
        const int filters = lesser(packed->n - m, LANES);
        for (int i = 0; i < computed; i++) memcpy(sums + i * LANES, packed->fixed + m, LANES * sizeof *sums);
        multiply_tile(computed, x, packed->panels + (size_t)(m / LANES) * packed->panel,
                      rounded(packed->total, TOGETHER), sums, LANES);
        for (int i = 0; i < n; i++) {
            if (packed->has_zeros)
                take_weight_zeros(of, packed->first + m, filters, x[i], packed->total, sums + i * LANES);
            round_sums(sums + i * LANES, packed->factors + m, how, filters, to + (size_t)i * stride + m);
        }
    }
}

static size_t tile_bytes(const struct task *task) {
    const struct layer *of = &task->layers[0];
    if (reads_in_place(task)) return 0;
    return TILE * rounded(taps_of(of) * (size_t)of->channels, TOGETHER) * sizeof(pixel);
}

// Filters that share one packing, and pixels, are divided among parts: filters where there are few pixels.
static int divides_filters(const struct task *task) {
    const struct layer *of = &task->layers[0];
    const int rows = task->end_row - task->first_row;
    return task->n_parts > 1 && !task->picture.planes &&
           (rows < task->n_parts || rows * of->made_width < of->filters * 4);
}

static size_t dense(struct task *task, size_t number, uint8_t *at) {
    const struct layer *of = &task->layers[0];
    struct memory memory = {at, 0};
    struct source source = open_source(task, &memory);
    struct packed packed = open_packed(of, task->group, &memory);
    const size_t gathered = tile_bytes(task);
    pixel *buffer = gathered ? take(&memory, gathered) : NULL;
    if (!at) return memory.used;
    const int parts = task->n_parts, by_filters = divides_filters(task), part = (int)number;
    const int panels = (of->filters + LANES - 1) / LANES, rows = task->end_row - task->first_row;
    const int first = by_filters ? panels * part / parts * LANES : 0;
    const int end = by_filters ? lesser(panels * (part + 1) / parts * LANES, of->filters) : of->filters;
    const int first_row = task->first_row + (by_filters ? 0 : rows * part / parts);
    const int end_row = task->first_row + (by_filters ? rows : rows * (part + 1) / parts);
    const struct rounding how = rounding_of(&of->made, NULL, of->made.flip);
    const pixel *x[TILE];
    for (int m = first; m < end; m += task->group) {
        pack(&packed, of, m, lesser(task->group, end - m));
        for (int i = first_row; i < end_row; i++) {
            for (int j = 0; j < of->made_width; j += TILE) {
                const int n = lesser(TILE, of->made_width - j);
                read_tile(&source, i, j, n, buffer, x);
                uint8_t *to = task->made + ((size_t)i * (size_t)of->made_width + (size_t)j) * (size_t)of->filters;
                make_tile(&packed, of, &how, n, x, to + m, (size_t)of->filters);
            }
        }
    }
    return memory.used;
}

#endif
