// Rows that the first layer reads, made as they are needed: of a picture, quantised from planes of floats and
// with channels last, or put together of several tensors.
#ifndef INTEGERS_MADE_ROWS_H
#define INTEGERS_MADE_ROWS_H

#include "memory.h"
#include "packing.h"

// Bytes of a pixel: so many that products read whole ones.
enum { WHOLE_PIXEL = 4 };

static inline size_t made_depth(const struct layer *first) { return rounded((size_t)first->channels, WHOLE_PIXEL); }

// Four channels of pixels [0, n) of a line, `depth` bytes from one to the next.
static void quantise_four(const float *line, size_t plane, int channels, int n, float scale, const struct rounding *how,
                          uint8_t *to, size_t depth) {
    int x = 0;
#if defined(__AVX512BW__)
    const __m512 by = _mm512_set1_ps(scale), low = _mm512_set1_ps(how->low), high = _mm512_set1_ps(how->high);
    for (; x < n; x += LANES) {
        const int count = lesser(n - x, LANES);
        const __mmask16 some = (__mmask16)((1u << count) - 1);
        __m512i all = _mm512_setzero_si512();
        for (int c = 0; c < channels; c++) {
            __m512 v = _mm512_div_ps(_mm512_maskz_loadu_ps(some, line + (size_t)c * plane + x), by);
            v = _mm512_min_ps(_mm512_max_ps(v, low), high);
            const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(how->zero));
            all = _mm512_or_si512(all, _mm512_slli_epi32(whole, (unsigned)(8 * c)));
        }
        if (depth == WHOLE_PIXEL) {
            _mm512_mask_storeu_epi32(to + (size_t)x * depth, some, all);
            continue;
        }
        uint32_t pixels[LANES];
        _mm512_storeu_si512(pixels, all);
        for (int i = 0; i < count; i++) memcpy(to + (size_t)(x + i) * depth, &pixels[i], sizeof *pixels);
    }
#endif
    for (; x < n; x++) {
        uint8_t *pixel = to + (size_t)x * depth;
        memset(pixel, 0, WHOLE_PIXEL);
        for (int c = 0; c < channels; c++) {
            float v = line[(size_t)c * plane + (size_t)x] / scale;
            v = v > how->low ? v : how->low;
            v = v < how->high ? v : how->high;
            pixel[c] = (uint8_t)((int32_t)__builtin_rintf(v) + how->zero);
        }
    }
}

static void quantise_row(const struct task *task, int row, uint8_t *to) {
    const struct picture *from = &task->picture;
    const struct layer *first = &task->layers[0];
    const struct rounding how = rounding_of(&from->made, NULL, 0);
    const float *line = from->planes + (size_t)(row - from->first_line) * from->line + from->first_column;
    for (int c = 0; c < first->channels; c += WHOLE_PIXEL) {
        const int channels = lesser(WHOLE_PIXEL, first->channels - c);
        quantise_four(line + (size_t)c * from->plane, from->plane, channels, first->width, *from->made.scale, &how,
                      to + c, made_depth(first));
    }
}

static inline int makes_rows(const struct task *task) { return task->picture.planes || task->joined.count; }

// What each byte of a tensor becomes in the scale of the whole, as ONNX Runtime has it.
static void fill_table(const struct scaled *from, const struct scaled *made, uint8_t *table) {
    const struct rounding how = rounding_of(made, NULL, 0);
    for (int i = 0; i < TABLE_BYTES; i++) {
        float v = *from->scale * (float)((i ^ from->flip) - zero_of(from)) / *made->scale;
        v = v > how.low ? v : how.low;
        v = v < how.high ? v : how.high;
        table[i] = (uint8_t)((int32_t)__builtin_rintf(v) + how.zero);
    }
}

static void join_row(const struct task *task, const uint8_t *table, int row, uint8_t *to) {
    const struct layer *first = &task->layers[0];
    const size_t depth = made_depth(first), width = (size_t)first->width;
    for (int k = 0; k < task->joined.count; k++, table += TABLE_BYTES) {
        const size_t channels = (size_t)task->joined.channels[k];
        const uint8_t *from = task->joined.parts[k] + (size_t)row * width * channels;
        for (size_t x = 0; x < width; x++, from += channels) {
            for (size_t c = 0; c < channels; c++) to[x * depth + c] = table[from[c]];
        }
        to += channels;
    }
}

// Rows that were made last, `count` of them and one of padding, all with columns of padding; `held` says
// which they are. `tables`: of the tensors that are put together.
struct made_rows {
    const struct task *task;
    int count;
    size_t line;  // bytes of a row
    uint8_t *rows, *tables;
    int32_t *held;
};

static void open_made_rows(struct made_rows *rows, const struct task *task, int columns, struct memory *memory) {
    const struct layer *first = &task->layers[0];
    const size_t depth = made_depth(first);
    rows->task = task;
    rows->count = (first->kernel_y - 1) * first->step_y + 1;
    rows->line = (size_t)columns * depth;
    const size_t n_bytes = rows->line * (size_t)(rows->count + 1);
    rows->rows = take(memory, n_bytes);
    rows->held = take(memory, (size_t)rows->count * sizeof *rows->held);
    rows->tables = take(memory, (size_t)task->joined.count * TABLE_BYTES);
    if (!memory->at) return;
    for (int i = 0; i < rows->count; i++) rows->held[i] = -1;
    // Of a pixel the channels that there are.
    memset(rows->rows, 0, depth);
    memset(rows->rows, zero_of(&first->given), (size_t)first->channels);
    for (size_t done = depth; done < n_bytes; done *= 2)
        memcpy(rows->rows + done, rows->rows, done < n_bytes - done ? done : n_bytes - done);
    for (int k = 0; k < task->joined.count; k++)
        fill_table(&task->joined.given[k], &task->joined.made, rows->tables + (size_t)k * TABLE_BYTES);
}

// Row `row`, from its padding on.
static const uint8_t *made_row(struct made_rows *rows, int row) {
    const struct layer *first = &rows->task->layers[0];
    if (row < 0 || row >= first->height) return rows->rows + rows->line * (size_t)rows->count;
    const int slot = row % rows->count;
    uint8_t *line = rows->rows + rows->line * (size_t)slot;
    if (rows->held[slot] == row) return line;
    uint8_t *to = line + (size_t)first->left * made_depth(first);
    if (rows->task->joined.count) {
        join_row(rows->task, rows->tables, row, to);
    } else {
        quantise_row(rows->task, row, to);
    }
    rows->held[slot] = row;
    return line;
}

#endif
