// Rows that a layer reads: of a tensor where they lie, or made.
#ifndef INTEGERS_ROWS_H
#define INTEGERS_ROWS_H

#include "made_rows.h"

// The most rows of a kernel whose pixels are read where they lie.
enum { MOST_RUNS = 16 };

// Pixels of the first layer, `laid` as its panels: `columns` of them in a row, `left` of padding before the others.
struct source {
    const struct task *task;
    const struct layer *of;
    struct laid laid;
    int left, columns, flip, in_place;
    struct made_rows made;
    pixel *buffer;          // of TILE pixels, where some are gathered
    ptrdiff_t *gathered;    // from run to run there
};

static int strip_width(const struct layer *of) {
    const int needed = (of->made_width - 1) * of->stride_x + (of->kernel_x - 1) * of->step_x + 1;
    return greater(needed, of->left + of->width);
}

// Whether some pixels may be gathered: those beside padding, where a run ends behind the last one, or all.
static int gathers(const struct source *source) {
    const struct layer *of = source->of;
    if (!source->in_place || makes_rows(source->task)) return !source->in_place;
    return taps_of(of) > 1 || of->above || of->left || (of->made_height - 1) * of->stride_y >= of->height ||
           (of->made_width - 1) * of->stride_x >= of->width || source->laid.run != source->laid.depth;
}

// `has_products`: it is read by products, not copied.
static struct source open_source(const struct task *task, int has_products, struct memory *memory) {
    const struct layer *first = &task->layers[0];
    const int is_made = makes_rows(task);
    struct source source = {.task = task, .of = first, .columns = first->width};
    source.laid = laid_of(first, is_made ? made_depth(first) : (size_t)first->channels);
    source.flip = is_made ? 0 : first->given.flip;
    source.in_place = sizeof(pixel) == 1 && !source.flip && first->kernel_y <= MOST_RUNS &&
                      (first->kernel_x == 1 || first->step_x == 1);
    if (is_made) {
        source.left = first->left;
        source.columns = strip_width(first);
        open_made_rows(&source.made, task, source.columns, memory);
    }
    if (!has_products || !gathers(&source)) return source;
    source.buffer = take(memory, TILE * source.laid.total * sizeof *source.buffer);
    source.gathered = take(memory, (size_t)first->kernel_y * sizeof *source.gathered);
    for (int k = 0; memory->at && k < first->kernel_y; k++) source.gathered[k] = k * (ptrdiff_t)source.laid.run;
    return source;
}

// Row `row` of what the first layer reads, from its padding on; NULL: there is none.
static inline const uint8_t *source_row(struct source *source, int row) {
    const struct layer *of = source->of;
    if (makes_rows(source->task)) return made_row(&source->made, row);
    if (row < 0 || row >= of->height) return NULL;
    return source->task->given + (size_t)row * (size_t)of->width * (size_t)of->channels;
}

static inline void copy_bytes(const uint8_t *from, int flip, size_t n, pixel *to) {
    if (sizeof *to == 1 && !flip) {
        memcpy(to, from, n);
        return;
    }
    for (size_t c = 0; c < n; c++) to[c] = (pixel)(from[c] ^ flip);
}

// The pixels of the window of result (y, x), row by row of the kernel; what is outside holds the zero point.
static void gather(struct source *source, int y, int x, pixel *to) {
    const struct layer *of = source->of;
    const size_t depth = source->laid.depth, across = (size_t)of->kernel_x * depth;
    const pixel zero = (pixel)zero_of(&of->given);
    const int flip = source->flip, leftmost = x * of->stride_x - of->left + source->left;
    const int beside = of->step_x == 1 && leftmost >= 0 && leftmost + of->kernel_x <= source->columns;
    for (int k = 0; k < of->kernel_y; k++) {
        const uint8_t *row = source_row(source, y * of->stride_y + k * of->step_y - of->above);
        for (size_t i = across; i < source->laid.run; i++) to[i] = 0;
        if (row && beside) {
            copy_bytes(row + (size_t)leftmost * depth, flip, across, to);
            to += source->laid.run;
            continue;
        }
        for (int l = 0; l < of->kernel_x; l++) {
            const int column = leftmost + l * of->step_x;
            if (row && column >= 0 && column < source->columns) {
                copy_bytes(row + (size_t)column * depth, flip, depth, to + (size_t)l * depth);
                continue;
            }
            for (size_t c = 0; c < depth; c++) to[(size_t)l * depth + c] = zero;
        }
        to += source->laid.run;
    }
}

// Whether the windows of n results from (y, x) on can be read where they lie, up to the end of a run: then of
// the rows of the kernel where they begin, from the first one.
static int find_runs(struct source *source, int y, int x, int n, const uint8_t **first, ptrdiff_t *steps) {
    const struct layer *of = source->of;
    const int leftmost = x * of->stride_x - of->left + source->left;
    const int last = leftmost + (n - 1) * of->stride_x;
    const int top = y * of->stride_y - of->above, bottom = top + (of->kernel_y - 1) * of->step_y;
    if (!source->in_place || leftmost < 0 || last + of->kernel_x > source->columns) return 0;
    if (!makes_rows(source->task)) {
        const size_t all = (size_t)of->height * (size_t)of->width * source->laid.depth;
        if (top < 0 || bottom >= of->height) return 0;
        if (((size_t)bottom * (size_t)of->width + (size_t)last) * source->laid.depth + source->laid.run > all) return 0;
    }
    *first = source_row(source, top);
    for (int k = 0; k < of->kernel_y; k++) steps[k] = source_row(source, top + k * of->step_y) - *first;
    *first += (size_t)leftmost * source->laid.depth;
    return 1;
}

// Up to TILE results from (y, x) on in a row, as products read them. `steps`: memory for as many as MOST_RUNS.
static struct runs read_tile(struct source *source, int y, int x, int n, ptrdiff_t *steps, const pixel **to) {
    const struct laid *laid = &source->laid;
    const uint8_t *first;
    if (find_runs(source, y, x, n, &first, steps)) {
        const size_t apart = (size_t)source->of->stride_x * laid->depth;
        for (int i = 0; i < n; i++) to[i] = (const pixel *)(const void *)(first + (size_t)i * apart);
        return (struct runs){source->of->kernel_y, laid->run, steps};
    }
    for (int i = 0; i < n; i++) {
        gather(source, y, x + i, source->buffer + (size_t)i * laid->total);
        to[i] = source->buffer + (size_t)i * laid->total;
    }
    return (struct runs){source->of->kernel_y, laid->run, source->gathered};
}

#endif
