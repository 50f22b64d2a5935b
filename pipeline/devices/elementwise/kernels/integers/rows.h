// Rows that a layer reads: of a tensor, or quantised from planes of floats as they are needed.
#ifndef INTEGERS_ROWS_H
#define INTEGERS_ROWS_H

#include "packing.h"

// Rows of a picture that were quantised last, `count` of them; `held` says which.
struct source {
    const struct task *task;
    int count, flip;
    uint8_t *rows;
    int32_t *held;
};

static void quantise_row(const struct task *task, int row, uint8_t *to) {
    const struct picture *from = &task->picture;
    const struct layer *first = &task->layers[0];
    const struct rounding how = rounding_of(&from->made, NULL, 0);
    const float scale = *from->made.scale;
    const float *line = from->planes + (size_t)(row - from->first_line) * from->line + from->first_column;
    const int channels = first->channels;
    for (int c = 0; c < channels; c++, line += from->plane) {
        for (int x = 0; x < first->width; x++) {
            float v = line[x] / scale;
            v = v > how.low ? v : how.low;
            v = v < how.high ? v : how.high;
            to[(size_t)x * (size_t)channels + (size_t)c] = (uint8_t)((int32_t)__builtin_rintf(v) + how.zero);
        }
    }
}

// Row `row` of what the first layer reads; NULL: padding.
static const uint8_t *source_row(struct source *source, int row) {
    const struct layer *first = &source->task->layers[0];
    const size_t n_bytes = (size_t)first->width * (size_t)first->channels;
    if (row < 0 || row >= first->height) return NULL;
    if (!source->task->picture.planes) return source->task->given + (size_t)row * n_bytes;
    const int slot = row % source->count;
    uint8_t *to = source->rows + (size_t)slot * n_bytes;
    if (source->held[slot] != row) {
        quantise_row(source->task, row, to);
        source->held[slot] = row;
    }
    return to;
}

static inline void copy_bytes(const uint8_t *from, int flip, size_t n, pixel *to) {
    if (sizeof *to == 1 && !flip) {
        memcpy(to, from, n);
        return;
    }
    for (size_t c = 0; c < n; c++) to[c] = (pixel)(from[c] ^ flip);
}

// The pixels of the window of result (y, x), of the kernel's rows; what is outside holds the zero point.
static void gather(struct source *source, const struct layer *of, int y, int x, pixel *to) {
    const size_t channels = (size_t)of->channels, total = taps_of(of) * channels;
    const pixel zero = (pixel)zero_of(&of->given);
    const int flip = source->flip;
    const int leftmost = x * of->stride_x - of->left;
    const int beside = of->step_x == 1 && leftmost >= 0 && leftmost + of->kernel_x <= of->width;
    for (int k = 0; k < of->kernel_y; k++) {
        const uint8_t *row = source_row(source, y * of->stride_y + k * of->step_y - of->above);
        if (row && beside) {
            copy_bytes(row + (size_t)leftmost * channels, flip, (size_t)of->kernel_x * channels, to);
            to += (size_t)of->kernel_x * channels;
            continue;
        }
        for (int l = 0; l < of->kernel_x; l++, to += channels) {
            const int column = leftmost + l * of->step_x;
            if (!row || column < 0 || column >= of->width) {
                for (size_t c = 0; c < channels; c++) to[c] = zero;
                continue;
            }
            copy_bytes(row + (size_t)column * channels, flip, channels, to);
        }
    }
    for (size_t k = total; k < rounded(total, TOGETHER); k++) *to++ = 0;
}

// Whether pixels of a tensor are read where they lie.
static int reads_in_place(const struct task *task) {
    const struct layer *of = &task->layers[0];
    return sizeof(pixel) == 1 && !task->picture.planes && !of->given.flip && taps_of(of) == 1 &&
           of->stride_y == 1 && of->stride_x == 1 && !of->above && !of->left && of->channels % TOGETHER == 0 &&
           of->made_height == of->height && of->made_width == of->width;
}

// Up to TILE results from (y, x) on in a row, as products read them; `buffer` for those that are gathered.
static void read_tile(struct source *source, int y, int x, int n, pixel *buffer, const pixel **to) {
    const struct layer *of = &source->task->layers[0];
    const size_t each = rounded(taps_of(of) * (size_t)of->channels, TOGETHER);
    if (!buffer) {
        const uint8_t *row = source_row(source, y);
        for (int i = 0; i < n; i++) to[i] = (const pixel *)(row + (size_t)(x + i) * (size_t)of->channels);
        return;
    }
    for (int i = 0; i < n; i++) {
        gather(source, of, y, x + i, buffer + (size_t)i * each);
        to[i] = buffer + (size_t)i * each;
    }
}

// Memory of a part, taken piece by piece; without `at` only counted.
struct memory {
    uint8_t *at;
    size_t used;
};

static void *take(struct memory *from, size_t n_bytes) {
    void *found = from->at ? from->at + from->used : NULL;
    from->used += rounded(n_bytes, 64);
    return found;
}

static struct source open_source(const struct task *task, struct memory *memory) {
    const struct layer *first = &task->layers[0];
    struct source source = {.task = task, .flip = task->picture.planes ? 0 : first->given.flip};
    if (!task->picture.planes) return source;
    source.count = (first->kernel_y - 1) * first->step_y + 1;
    source.rows = take(memory, (size_t)source.count * (size_t)first->width * (size_t)first->channels);
    source.held = take(memory, (size_t)source.count * sizeof *source.held);
    for (int i = 0; memory->at && i < source.count; i++) source.held[i] = -1;
    return source;
}

#endif
