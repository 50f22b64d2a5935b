// Layers around a depthwise one: a group of its channels is made, added up, and forgotten (seed 004, Eq. 3).
//
// Band by band of the last layer's rows: 32-bit sums of a band, and for a group some rows of what the depthwise
// layer reads. So memory depends on neither how many inner channels there are nor on how high tensors are.
// Parts make one group of one band after the other; they have the sums in common (sums.h).
#ifndef INTEGERS_BOTTLENECK_H
#define INTEGERS_BOTTLENECK_H

#include "dense.h"
#include "depthwise.h"
#include "sums.h"

// Memory of a part, for sixteen channels of a group at a time. `strip`: `span` rows of what the depthwise layer
// reads and one more of padding; `held` says which they are.
struct bottleneck {
    struct task *task;
    const struct layer *before, *middle;  // `before` may be NULL
    struct source source;
    struct packed first;
    struct sums sums;
    uint8_t *strip;
    int32_t *held;
    const uint8_t **rows;
    each_tap *taps, *ones;
    int32_t fixed[LANES];
    float factors[LANES];
    int span, group, middle_zeros;
    size_t line;  // bytes of a row of the strip
};

// What parts have in common, and what part `part` has itself; without memory all of it is counted.
static void open_bottleneck(struct bottleneck *b, struct task *task, int part, struct memory *memory) {
    memset(b, 0, sizeof *b);
    b->task = task;
    b->middle = &task->layers[task->depthwise];
    b->before = task->depthwise ? &task->layers[0] : NULL;
    b->group = task->group;
    b->sums = open_sums(task, memory);
    const size_t common = memory->used, places = (size_t)task->n_places;
    struct memory own = {memory->at, memory->at ? common + (size_t)part * ((task->n_bytes - common) / places) : 0};
    b->source = open_source(task, b->before != NULL, &own);
    // A part makes a group or adds one: panels of both lie in the same memory.
    const size_t before = b->before ? b->source.laid.total * LANES : 0, behind = b->sums.of ? (size_t)b->group * LANES : 0;
    b->sums.panel = take(&own, (before > behind ? before : behind) * sizeof *b->sums.panel);
    if (b->before) b->first = open_packed(&b->source, LANES, b->sums.panel, &own);
    b->span = (b->middle->kernel_y - 1) * b->middle->step_y + 1;
    b->line = (size_t)strip_width(b->middle) * LANES;
    const size_t strip = b->line * (size_t)(b->span + 1) + columns_beyond(b->middle);
    b->strip = take(&own, strip);
    b->held = take(&own, (size_t)b->span * sizeof *b->held);
    b->rows = take(&own, (size_t)b->middle->kernel_y * sizeof *b->rows);
    b->taps = take(&own, each_taps(b->middle) * sizeof *b->taps);
    b->ones = take(&own, each_taps(b->middle) * sizeof *b->ones);
    memory->used += own.used * places;
    if (!memory->at) return;
    b->middle_zeros = any_weight_zero(b->middle);
    if (b->middle_zeros) pack_ones(b->middle, b->ones);
    memset(b->strip, zero_of(&b->middle->given), strip);
}

// Weights of channels [first, first + n), at most sixteen, of the layers that make them.
static void pack_channels(struct bottleneck *b, int first, int n) {
    if (b->before) pack(&b->first, first, n);
    memset(b->fixed, 0, sizeof b->fixed);
    pack_factors(b->middle, first, n, b->factors);
    add_bias(b->middle, first, n, b->fixed);
    pack_each(b->middle, first, n, b->taps);
    add_fixed_each(b->middle, b->middle_zeros, first, n, b->taps, b->fixed);
    for (int i = 0; i < b->span; i++) b->held[i] = -1;
}

static void copy_row(struct bottleneck *b, int row, int first, int n, uint8_t *to) {
    const struct layer *of = b->middle;
    const size_t depth = b->source.laid.depth;
    const uint8_t *from = source_row(&b->source, row) + (size_t)b->source.left * depth + first;
    const uint8_t flip = (uint8_t)b->source.flip;
    for (int x = 0; x < of->width; x++, from += depth, to += LANES) {
        for (int c = 0; c < n; c++) to[c] = from[c] ^ flip;
    }
}

static void make_row(struct bottleneck *b, int row, uint8_t *to) {
    const struct rounding how = rounding_of(&b->before->made, NULL, 0);
    const pixel *x[TILE];
    ptrdiff_t steps[MOST_RUNS];
    for (int j = 0, n; j < b->before->made_width; j += n) {
        n = next_tile(b->before->made_width - j);
        const struct runs runs = read_tile(&b->source, row, j, n, steps, x);
        make_tile(&b->first, &how, n, x, &runs, to + j * LANES, LANES);
    }
}

// A row of what the depthwise layer reads of channels [first, first + n).
static const uint8_t *strip_row(struct bottleneck *b, int row, int first, int n) {
    if (row < 0 || row >= b->middle->height) return b->strip + b->line * (size_t)b->span;
    const int slot = row % b->span;
    uint8_t *line = b->strip + b->line * (size_t)slot;
    if (b->held[slot] != row) {
        uint8_t *to = line + b->middle->left * LANES;
        if (b->before) {
            make_row(b, row, to);
        } else {
            copy_row(b, row, first, n, to);
        }
        b->held[slot] = row;
    }
    return line;
}

// Takes from sums of windows what the zero points of weights make of them.
static void take_middle_zeros(const struct bottleneck *b, const struct window *window, int j, int n, int first,
                              int channels, int32_t *sums) {
    static const int32_t nothing[LANES];
    int32_t all[WINDOWS * LANES];
    window_sums(b->middle, n, window, j, b->ones, nothing, all);
    for (int i = 0; i < n * LANES; i++) {
        if (i % LANES < channels) sums[i] -= weight_zero(b->middle, first + i % LANES) * all[i];
    }
}

// Sums of n pixels of sixteen channels as bytes that products read, `stride` of them from one to the next.
static inline void round_to_pixels(int n, const int32_t *sums, const float *factors, const struct rounding *how,
                                   pixel *to, int stride) {
#if defined(__AVX512VNNI__)
    round_pixels(n, sums, LANES, factors, how, LANES, to, (size_t)stride);
#else
    uint8_t bytes[WINDOWS * LANES];
    round_pixels(n, sums, LANES, factors, how, LANES, bytes, LANES);
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < LANES; c++) to[i * stride + c] = bytes[i * LANES + c];
    }
#endif
}

// Row `row` of the depthwise layer, channels [first, first + n): to memory of the task, or to the result.
static void make_middle(struct bottleneck *b, int row, int first, int n, pixel *made) {
    const struct layer *of = b->middle;
    const struct rounding how = rounding_of(&of->made, NULL, made ? 0 : of->made.flip);
    for (int k = 0; k < of->kernel_y; k++)
        b->rows[k] = strip_row(b, row * of->stride_y + k * of->step_y - of->above, first, n);
    const size_t pixels = (size_t)row * (size_t)of->made_width, filters = (size_t)of->filters;
    const struct window window = {b->rows, (size_t)of->step_x * LANES, (size_t)of->stride_x * LANES};
    for (int j = 0; j < of->made_width; j += WINDOWS) {
        const int count = lesser(WINDOWS, of->made_width - j);
        int32_t sums[WINDOWS * LANES];
        window_sums(of, count, &window, j, b->taps, b->fixed, sums);
        if (b->middle_zeros) take_middle_zeros(b, &window, j, count, first, n, sums);
        if (made) {
            round_to_pixels(count, sums, b->factors, &how, made + j * b->group, b->group);
        } else {
            uint8_t *to = b->task->made + (pixels + (size_t)j) * filters + (size_t)first;
            round_pixels(count, sums, LANES, b->factors, &how, n, to, filters);
        }
    }
}

// Group `item` of all groups of all bands: to memory of the task, or to the result.
static void make_group(struct bottleneck *b, int item) {
    const struct task *task = b->task;
    const int start = task->first_row + item / b->sums.groups * task->rows;
    const int end = lesser(start + task->rows, task->end_row);
    const int first = item % b->sums.groups * b->group, n = lesser(b->group, b->middle->channels - first);
    const int line = b->middle->made_width * b->group;
    pixel *made = b->sums.of ? b->sums.made + (size_t)(item % b->sums.n_slots) * slot_pixels(&b->sums) : NULL;
    for (int m = 0; m < n; m += LANES) {
        const int channels = lesser(n - m, LANES);
        pack_channels(b, first + m, channels);
        for (int row = start; row < end; row++)
            make_middle(b, row, first + m, channels, made ? made + (row - start) * line + m : NULL);
    }
}

// Makes groups and adds them up, until there is nothing to do.
static void make_sums(struct bottleneck *b, int part) {
    const struct sums *sums = &b->sums;
    for (int times = 0; !have_added(sums, sums->n_items - 1);) {
        if (add_next(sums, part)) continue;
        const int item = next_group(sums);
        if (item >= 0) {
            make_group(b, item);
            hand_on(sums, item);
        } else if (!add_to_others(sums, part)) {
            wait_a_little(&times);
        }
    }
}

static size_t bottleneck(struct task *task, int part, uint8_t *at) {
    struct memory memory = {at, 0};
    struct bottleneck b;
    open_bottleneck(&b, task, part, &memory);
    if (!at) return memory.used;
    if (b.sums.of) {
        make_sums(&b, part);
        return memory.used;
    }
    for (int item; (item = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED)) < b.sums.n_items;) make_group(&b, item);
    return memory.used;
}

static void begin_bottleneck(struct task *task) {
    struct memory memory = {task->memory, 0};
    const struct sums sums = open_sums(task, &memory);
    if (sums.of) begin_sums(&sums);
}

#endif
