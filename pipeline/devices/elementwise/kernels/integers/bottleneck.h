// Layers around a depthwise one: a group of its channels is made, added up, and forgotten (seed 004, Eq. 3).
//
// Band by band of the last layer's rows: 32-bit sums of a band, and for a group some rows of what the depthwise
// layer reads. So memory depends on neither how many inner channels there are nor on how high tensors are.
#ifndef INTEGERS_BOTTLENECK_H
#define INTEGERS_BOTTLENECK_H

#include "dense.h"
#include "depthwise.h"

// Memory of a part. `strip`: `span` rows of a group, and one more of padding; `held` says which they are.
struct bottleneck {
    const struct task *task;
    const struct layer *before, *middle, *after;  // `before` and `after` may be NULL
    struct source source;
    struct packed first;
    pixel *buffer, *made;
    each_tap *taps, *ones;
    int32_t *fixed, *sums, *last_fixed;
    float *factors, *last_factors;
    tap *panels;
    uint8_t *strip;
    int32_t *held;
    const uint8_t **rows;
    int span, group, width, middle_zeros, last_zeros;
    size_t line, filters;  // bytes of a row of the strip; rounded filters of the last layer
};

static int strip_width(const struct layer *of) {
    const int needed = (of->made_width - 1) * of->stride_x + (of->kernel_x - 1) * of->step_x + 1;
    return greater(needed, of->left + of->width);
}

static void open_bottleneck(struct bottleneck *b, const struct task *task, struct memory *memory) {
    const int at = task->depthwise, last = task->n_layers - 1;
    memset(b, 0, sizeof *b);
    b->task = task;
    b->middle = &task->layers[at];
    b->before = at ? &task->layers[0] : NULL;
    b->after = last > at ? &task->layers[last] : NULL;
    b->group = task->group;
    b->source = open_source(task, memory);
    const size_t group = (size_t)b->group, lanes = group / LANES;
    if (b->before) {
        b->first = open_packed(b->before, b->group, memory);
        if (tile_bytes(task)) b->buffer = take(memory, tile_bytes(task));
    }
    b->span = (b->middle->kernel_y - 1) * b->middle->step_y + 1;
    b->width = strip_width(b->middle);
    b->line = (size_t)b->width * group;
    b->strip = take(memory, b->line * (size_t)(b->span + 1) + LANES);
    b->held = take(memory, (size_t)b->span * sizeof *b->held);
    b->rows = take(memory, (size_t)b->middle->kernel_y * sizeof *b->rows);
    b->taps = take(memory, lanes * each_taps(b->middle) * sizeof *b->taps);
    b->middle_zeros = memory->at && any_weight_zero(b->middle);
    b->ones = take(memory, each_taps(b->middle) * sizeof *b->ones);
    b->fixed = take(memory, group * sizeof *b->fixed);
    b->factors = take(memory, group * sizeof *b->factors);
    b->made = take(memory, (size_t)b->middle->made_width * group * sizeof *b->made);
    if (!b->after) return;
    b->last_zeros = memory->at && any_weight_zero(b->after);
    b->filters = rounded((size_t)b->after->filters, LANES);
    b->panels = take(memory, group * b->filters * sizeof *b->panels);
    b->last_fixed = take(memory, b->filters * sizeof *b->last_fixed);
    b->last_factors = take(memory, b->filters * sizeof *b->last_factors);
    b->sums = take(memory, (size_t)task->rows * (size_t)b->middle->made_width * b->filters * sizeof *b->sums);
}

// Weights of the channels [first, first + n) of all layers.
static void pack_group(struct bottleneck *b, int first, int n) {
    if (b->before) pack(&b->first, b->before, first, n);
    memset(b->fixed, 0, (size_t)b->group * sizeof *b->fixed);
    pack_factors(b->middle, first, n, b->factors);
    add_bias(b->middle, first, n, b->fixed);
    add_fixed_each(b->middle, first, n, b->fixed);
    for (int m = 0; m < n; m += LANES)
        pack_each(b->middle, first + m, lesser(n - m, LANES), 0, b->taps + (size_t)(m / LANES) * each_taps(b->middle));
    for (int i = 0; i < b->span; i++) b->held[i] = -1;
    if (!b->after) return;
    for (int m = 0; m < b->after->filters; m += LANES) {
        tap *panel = b->panels + (size_t)m * (size_t)b->group;
        const int filters = lesser(b->after->filters - m, LANES);
        pack_panel(b->after, m, filters, first, n, NULL, panel);
        add_fixed(b->after, m, filters, panel, (size_t)n, b->last_fixed + m);
    }
}

static void copy_row(struct bottleneck *b, int row, int first, int n, uint8_t *to) {
    const struct layer *of = b->middle;
    const uint8_t *from = source_row(&b->source, row) + first;
    for (int x = 0; x < of->width; x++, from += of->channels, to += b->group) {
        for (int c = 0; c < n; c++) to[c] = (uint8_t)(from[c] ^ b->source.flip);
    }
}

static void make_row(struct bottleneck *b, int row, uint8_t *to) {
    const struct rounding how = rounding_of(&b->before->made, NULL, 0);
    const pixel *x[TILE];
    for (int j = 0; j < b->before->made_width; j += TILE) {
        const int n = lesser(TILE, b->before->made_width - j);
        read_tile(&b->source, row, j, n, b->buffer, x);
        make_tile(&b->first, b->before, &how, n, x, to + (size_t)j * (size_t)b->group, (size_t)b->group);
    }
}

// A group's row of what the depthwise layer reads.
static const uint8_t *strip_row(struct bottleneck *b, int row, int first, int n) {
    if (row < 0 || row >= b->middle->height) return b->strip + b->line * (size_t)b->span;
    const int slot = row % b->span;
    uint8_t *line = b->strip + b->line * (size_t)slot;
    if (b->held[slot] != row) {
        uint8_t *to = line + (size_t)b->middle->left * (size_t)b->group;
        if (b->before) {
            make_row(b, row, to);
        } else {
            copy_row(b, row, first, n, to);
        }
        b->held[slot] = row;
    }
    return line;
}

// Row `row` of the depthwise layer, channels [first, first + n): to memory of the task, or to the result.
static void make_middle(struct bottleneck *b, int row, int first, int n) {
    const struct layer *of = b->middle;
    const struct rounding how = rounding_of(&of->made, NULL, b->after ? 0 : of->made.flip);
    for (int k = 0; k < of->kernel_y; k++)
        b->rows[k] = strip_row(b, row * of->stride_y + k * of->step_y - of->above, first, n);
    const size_t step = (size_t)of->step_x * (size_t)b->group;
    for (int m = 0; m < n; m += LANES) {
        const each_tap *taps = b->taps + (size_t)(m / LANES) * each_taps(of);
        const int channels = lesser(n - m, LANES);
        for (int j = 0; j < of->made_width; j++) {
            int32_t sums[LANES];
            uint8_t bytes[LANES];
            const size_t at = (size_t)(j * of->stride_x) * (size_t)b->group + (size_t)m;
            memcpy(sums, b->fixed + m, sizeof sums);
            window_sums(of, b->rows, at, step, taps, sums);
            if (b->middle_zeros) {
                int32_t all[LANES] = {0};
                window_sums(of, b->rows, at, step, b->ones, all);
                for (int c = 0; c < channels; c++) sums[c] -= weight_zero(of, first + m + c) * all[c];
            }
            round_sums(sums, b->factors + m, &how, LANES, bytes);
            if (b->after) {
                pixel *to = b->made + (size_t)j * (size_t)b->group + m;
                for (int c = 0; c < LANES; c++) to[c] = bytes[c];
            } else {
                const size_t pixels = (size_t)row * (size_t)of->made_width + (size_t)j;
                memcpy(b->task->made + pixels * (size_t)of->filters + (size_t)(first + m), bytes, (size_t)channels);
            }
        }
    }
}

// Adds what a group makes of row `row` to the sums of the band.
static void add_row(struct bottleneck *b, int row, int n) {
    const int width = b->middle->made_width;
    for (int j = 0; j < width; j += TILE) {
        const pixel *x[TILE];
        const int count = lesser(TILE, width - j);
        for (int i = 0; i < count; i++) x[i] = b->made + (size_t)(j + i) * (size_t)b->group;
        int32_t *sums = b->sums + ((size_t)row * (size_t)width + (size_t)j) * b->filters;
        for (int m = 0; m < b->after->filters; m += LANES) {
            multiply_tile(count, x, b->panels + (size_t)m * (size_t)b->group, rounded((size_t)n, TOGETHER), sums + m,
                          b->filters);
            for (int i = 0; b->last_zeros && i < count; i++)
                take_weight_zeros(b->after, m, lesser(b->after->filters - m, LANES), x[i], (size_t)n,
                                  sums + (size_t)i * b->filters + m);
        }
    }
}

// What a sum of two bytes is computed with. One of the two products is not rounded, as in ONNX Runtime.
struct factors {
    float first, second, start;
};

static float signed_zero(const struct scaled *of) { return of->flip ? (float)(int8_t)*of->zero : (float)*of->zero; }

static struct factors factors_of(const struct addition *of) {
    const float first = *of->first.scale / *of->made.scale, second = *of->second.scale / *of->made.scale;
    const float part = second * signed_zero(&of->second);
    return (struct factors){first, second,
                            signed_zero(&of->made) - __builtin_fmaf(first, signed_zero(&of->first), part)};
}

static inline float value_of(uint8_t byte, int flip) { return flip ? (float)(int8_t)byte : (float)byte; }

// Adds another tensor's bytes to those of `to`.
static void add_other(const struct addition *by, const struct factors *with, const uint8_t *other, int n, uint8_t *to) {
    const float low = by->made.flip ? -128 : 0, high = low + 255;
    const uint8_t *first = by->over ? other : to, *second = by->over ? to : other;
    for (int c = 0; c < n; c++) {
        const float part = __builtin_fmaf(value_of(second[c], by->second.flip), with->second, with->start);
        float v = __builtin_fmaf(value_of(first[c], by->first.flip), with->first, part);
        v = v > low ? v : low;
        v = v < high ? v : high;
        to[c] = (uint8_t)(int32_t)__builtin_rintf(v);
    }
}

// Rounds the sums of rows [first, end) and writes them.
static void write_rows(struct bottleneck *b, int first, int end) {
    const struct layer *of = b->after;
    const struct rounding how = rounding_of(&of->made, NULL, of->made.flip);
    const struct addition *by = &b->task->addition;
    const struct factors with = by->other ? factors_of(by) : (struct factors){0};
    const size_t pixels = (size_t)(end - first) * (size_t)of->made_width;
    size_t at = (size_t)first * (size_t)of->made_width * (size_t)of->filters;
    int32_t *sums = b->sums;
    for (size_t i = 0; i < pixels; i++, sums += b->filters, at += (size_t)of->filters) {
        for (int m = 0; m < of->filters; m += LANES) {
            int32_t all[LANES];
            for (int c = 0; c < LANES; c++) all[c] = sums[m + c] + b->last_fixed[m + c];
            round_sums(all, b->last_factors + m, &how, lesser(LANES, of->filters - m), b->task->made + at + m);
        }
        if (by->other) add_other(by, &with, by->other + at, of->filters, b->task->made + at);
    }
}

static void make_band(struct bottleneck *b, int first_row, int end_row) {
    const int channels = b->middle->channels;
    const int width = b->middle->made_width;
    if (b->after) {
        memset(b->sums, 0, (size_t)(end_row - first_row) * (size_t)width * b->filters * sizeof *b->sums);
        memset(b->last_fixed, 0, b->filters * sizeof *b->last_fixed);
        add_bias(b->after, 0, b->after->filters, b->last_fixed);
    }
    for (int first = 0; first < channels; first += b->group) {
        const int n = lesser(b->group, channels - first);
        pack_group(b, first, n);
        for (int row = first_row; row < end_row; row++) {
            make_middle(b, row, first, n);
            if (b->after) add_row(b, row - first_row, n);
        }
    }
    if (b->after) write_rows(b, first_row, end_row);
}

static size_t bottleneck(struct task *task, size_t number, uint8_t *at) {
    struct memory memory = {at, 0};
    struct bottleneck b;
    open_bottleneck(&b, task, &memory);
    if (!at) return memory.used;
    memset(b.strip, zero_of(&b.middle->given), b.line * (size_t)(b.span + 1) + LANES);
    pack_each(b.middle, 0, LANES, 1, b.ones);
    if (b.after) pack_factors(b.after, 0, b.after->filters, b.last_factors);
    const int rows = task->end_row - task->first_row, parts = task->n_parts, part = (int)number;
    const int end = task->first_row + rows * (part + 1) / parts;
    for (int row = task->first_row + rows * part / parts; row < end; row += task->rows)
        make_band(&b, row, lesser(row + task->rows, end));
    return memory.used;
}

#endif
