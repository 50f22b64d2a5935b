// Sums of a band that groups are added to, by all parts of a task, and what is made of them.
//
// A chunk, some rows of a band, has one part at a time. Whoever adds the last group to it writes it, and it is the
// next band's. Groups are begun in order, and who waits has one: so whom it waits for has begun and gets on.
#ifndef INTEGERS_SUMS_H
#define INTEGERS_SUMS_H

#include "addition.h"
#include "memory.h"
#include "packing.h"

// Pixels of a chunk, about: for so many each panel is packed again.
enum { CHUNK_PIXELS = 96 };

// `band`: the one that the chunk's sums are of; `done`: groups that were added to them.
struct chunk {
    int32_t busy, band, done;
};

struct sums {
    struct task *task;
    const struct layer *of;  // the last one; NULL: the depthwise layer makes the result
    int chunk_rows, n_chunks, groups, has_zeros;
    size_t width, filters;   // rounded filters
    struct chunk *chunks;
    int32_t *fixed, *sums;
    tap *panel;              // of the part
};

static struct sums open_sums(struct task *task, struct memory *memory) {
    const struct layer *middle = &task->layers[task->depthwise];
    const int group = task->group;
    struct sums sums = {.task = task, .groups = (middle->channels + group - 1) / group};
    if (task->n_layers - 1 == task->depthwise) return sums;
    sums.of = &task->layers[task->n_layers - 1];
    sums.width = (size_t)middle->made_width;
    sums.filters = rounded((size_t)sums.of->filters, LANES);
    sums.chunk_rows = lesser(greater(CHUNK_PIXELS / middle->made_width, 1), task->rows);
    sums.n_chunks = (task->rows + sums.chunk_rows - 1) / sums.chunk_rows;
    sums.chunks = take(memory, (size_t)sums.n_chunks * sizeof *sums.chunks);
    sums.fixed = take(memory, sums.filters * sizeof *sums.fixed);
    sums.sums = take(memory, (size_t)task->rows * sums.width * sums.filters * sizeof *sums.sums);
    sums.has_zeros = memory->at && any_weight_zero(sums.of);
    return sums;
}

static void open_own_sums(struct sums *sums, struct memory *own) {
    if (sums->of) sums->panel = take(own, (size_t)sums->task->group * LANES * sizeof *sums->panel);
}

static void begin_sums(const struct sums *sums) {
    memset(sums->chunks, 0, (size_t)sums->n_chunks * sizeof *sums->chunks);
    memset(sums->fixed, 0, sums->filters * sizeof *sums->fixed);
    add_bias(sums->of, 0, sums->of->filters, sums->fixed);
}

static void enter(struct chunk *chunk, int band) {
    int times = 0;
    while (__atomic_load_n(&chunk->band, __ATOMIC_ACQUIRE) != band ||
           __atomic_exchange_n(&chunk->busy, 1, __ATOMIC_ACQUIRE))
        wait_a_little(&times);
}

static void leave(struct chunk *chunk) { __atomic_store_n(&chunk->busy, 0, __ATOMIC_RELEASE); }

// Rounds the sums of `pixels` pixels and writes them, from the result's pixel `at` on.
static void write_sums(const struct sums *sums, int32_t *from, size_t pixels, size_t at) {
    const struct layer *of = sums->of;
    const struct rounding how = rounding_of(&of->made, NULL, of->made.flip);
    const struct addition *by = &sums->task->addition;
    const size_t filters = (size_t)of->filters;
    uint8_t *to = sums->task->made + at * filters;
    for (int m = 0; m < of->filters; m += LANES) {
        const int n = lesser(LANES, of->filters - m);
        float factors[LANES];
        pack_factors(of, m, n, factors);
        for (size_t i = 0; i < pixels; i += 4) {
            const int count = pixels - i < 4 ? (int)(pixels - i) : 4;
            int32_t all[4 * LANES];
            for (int j = 0; j < count; j++) {
                const int32_t *each = from + (i + (size_t)j) * sums->filters + m;
                for (int c = 0; c < LANES; c++) all[j * LANES + c] = each[c] + sums->fixed[m + c];
            }
            round_pixels(count, all, LANES, factors, &how, n, to + i * filters + m, filters);
        }
    }
    if (by->other) add_other(by, by->other + at * filters, pixels * filters, to);
}

// Adds what channels [first, first + n) make of sixteen filters of `pixels` pixels to `to`; `is_new`: there are
// no sums yet.
static void add_panel(const struct sums *sums, int m, int n, size_t pixels, int is_new, const pixel *made, int32_t *to) {
    static const int32_t nothing[LANES];
    static const ptrdiff_t start[1];
    const size_t group = (size_t)sums->task->group;
    const struct runs runs = {1, rounded((size_t)n, TOGETHER), start};
    for (size_t i = 0, count; i < pixels; i += count, to += count * sums->filters) {
        const pixel *x[TILE];
        count = (size_t)next_tile((int)(pixels - i));
        for (size_t j = 0; j < count; j++) x[j] = made + (i + j) * group;
        multiply_tile((int)count, x, &runs, sums->panel, is_new ? nothing : to, is_new ? 0 : sums->filters, to,
                      sums->filters);
        for (size_t j = 0; sums->has_zeros && j < count; j++)
            take_weight_zeros(sums->of, m, lesser(LANES, sums->of->filters - m), x[j], &runs, (size_t)n,
                              to + j * sums->filters);
    }
}

// Adds what channels [first, first + n) make of chunk `chunk` of a band, `rows` rows from `row` on.
static void add_chunk(struct sums *sums, int band, int number, int row, int rows, int first, int n, const pixel *made) {
    const struct layer *of = sums->of;
    const struct laid laid = {(size_t)n, rounded((size_t)n, TOGETHER), rounded((size_t)n, TOGETHER)};
    const size_t pixels = (size_t)rows * sums->width;
    struct chunk *chunk = sums->chunks + number;
    int32_t *to = sums->sums + (size_t)(number * sums->chunk_rows) * sums->width * sums->filters;
    enter(chunk, band);
    for (int m = 0; m < of->filters; m += LANES) {
        const int filters = lesser(LANES, of->filters - m);
        pack_panel(of, &laid, m, filters, first, n, NULL, sums->panel);
        // The first chunk is every group's first one, and nothing is written before all groups were there.
        if (!band && !number) add_fixed(of, &laid, m, filters, sums->panel, (size_t)n, sums->fixed + m);
        add_panel(sums, m, n, pixels, !chunk->done, made, to + m);
    }
    if (++chunk->done == sums->groups) {
        write_sums(sums, to, pixels, (size_t)row * sums->width);
        chunk->done = 0;
        __atomic_store_n(&chunk->band, band + 1, __ATOMIC_RELEASE);
    }
    leave(chunk);
}

#endif
