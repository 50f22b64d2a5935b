// Attention of some rows of queries: keys come in tiles, with the maximum and the sum so far of each row.
//
// Every number is a sum in one order: over channels of a score, over keys of a result. What is made of a row
// depends on no other row, so that it has the same bits wherever rows are divided.
#include "attention.h"

#include <stdlib.h>

#include "exponential.h"
#include "target.h"

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 lanes;
enum { N_LANES = 16, PANEL = 12 };
static inline lanes load_lanes(const float *from) { return _mm512_loadu_ps(from); }
static inline void store_lanes(float *to, lanes x) { _mm512_storeu_ps(to, x); }
static inline lanes all_lanes(float x) { return _mm512_set1_ps(x); }
static inline lanes fma_lanes(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__)
#include <immintrin.h>
typedef __m256 lanes;
enum { N_LANES = 8, PANEL = 6 };
static inline lanes load_lanes(const float *from) { return _mm256_loadu_ps(from); }
static inline void store_lanes(float *to, lanes x) { _mm256_storeu_ps(to, x); }
static inline lanes all_lanes(float x) { return _mm256_set1_ps(x); }
static inline lanes fma_lanes(lanes a, lanes b, lanes c) { return _mm256_fmadd_ps(a, b, c); }
#else
#include <arm_neon.h>
typedef float32x4_t lanes;
enum { N_LANES = 4, PANEL = 12 };
static inline lanes load_lanes(const float *from) { return vld1q_f32(from); }
static inline void store_lanes(float *to, lanes x) { vst1q_f32(to, x); }
static inline lanes all_lanes(float x) { return vdupq_n_f32(x); }
static inline lanes fma_lanes(lanes a, lanes b, lanes c) { return vfmaq_f32(c, a, b); }
#endif

// Columns of a block of products; partial sums of a row, as many on every processor.
// Numbers of a line of the cache, and rows of a later tile that are fetched meanwhile.
enum { COLUMNS = 2 * N_LANES, N_PARTIAL = 16, LINE = 16, FETCHED = 2 };
_Static_assert(ATTENTION_ROWS % PANEL == 0, "whole panels");
_Static_assert(ATTENTION_KEYS % COLUMNS == 0 && MAX_HEAD % COLUMNS == 0, "whole blocks");

static const float LEAST = -87.0f;  // below it exp x counts as zero

static inline size_t padded(size_t n) { return (n + COLUMNS - 1) / COLUMNS * COLUMNS; }

// Makes PANEL rows of `to`, `step` apart, of `depth` products, or adds these to what is there (`adds`): number
// (row, i) of a is a[row * of_row + i * of_i].
static inline __attribute__((always_inline)) void multiply_panel(int adds, float *to, size_t step, const float *a,
                                                                 size_t of_row, size_t of_i, const float *b,
                                                                 size_t b_step, size_t depth) {
    lanes sums[PANEL][2];
    for (int row = 0; row < PANEL; row++) {
        sums[row][0] = adds ? load_lanes(to + (size_t)row * step) : all_lanes(0.0f);
        sums[row][1] = adds ? load_lanes(to + (size_t)row * step + N_LANES) : all_lanes(0.0f);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < depth; i++, a += of_i, b += b_step) {
        const lanes first = load_lanes(b), second = load_lanes(b + N_LANES);
#pragma GCC unroll 12
        for (int row = 0; row < PANEL; row++) {
            const lanes factor = all_lanes(a[(size_t)row * of_row]);
            sums[row][0] = fma_lanes(factor, first, sums[row][0]);
            sums[row][1] = fma_lanes(factor, second, sums[row][1]);
        }
    }
    for (int row = 0; row < PANEL; row++) {
        store_lanes(to + (size_t)row * step, sums[row][0]);
        store_lanes(to + (size_t)row * step + N_LANES, sums[row][1]);
    }
}

// Queries as panels [channel][PANEL], times the scale; rows that fill the last one are zero.
static void take_queries(float *to, const struct attention *of, const float *from, size_t n_rows) {
    const size_t step = of->n_heads * of->head;
    for (size_t first = 0; first < n_rows; first += PANEL, to += of->head * PANEL)
        for (size_t row = 0; row < PANEL; row++)
            for (size_t i = 0; i < of->head; i++)
                to[i * PANEL + row] = first + row < n_rows ? of->scale * from[(first + row) * step + i] : 0.0f;
}

// Keys as [channel][key], zero behind the last one.
static void take_keys(float *to, const struct attention *of, const float *from, size_t n) {
    const size_t step = of->n_heads * of->head;
    for (size_t key = 0; key < n; key++)
        for (size_t i = 0; i < of->head; i++) to[i * ATTENTION_KEYS + key] = from[key * step + i];
    for (size_t i = 0; n < ATTENTION_KEYS && i < of->head; i++)
        memset(to + i * ATTENTION_KEYS + n, 0, (ATTENTION_KEYS - n) * sizeof *to);
}

// Values as [key][channel], channels filled up with zeros.
static void take_values(float *to, const struct attention *of, const float *from, size_t n) {
    const size_t step = of->n_heads * of->value_head, width = padded(of->value_head);
    for (size_t key = 0; key < n; key++, to += width) {
        memcpy(to, from + key * step, of->value_head * sizeof *to);
        memset(to + of->value_head, 0, (width - of->value_head) * sizeof *to);
    }
}

// Of the ATTENTION_KEYS scores of a row: the largest; NaN may be lost, and comes back from the exponential.
static float largest(const float *scores) {
    float parts[N_PARTIAL];
    memcpy(parts, scores, sizeof parts);
    for (int key = N_PARTIAL; key < ATTENTION_KEYS; key += N_PARTIAL)
        for (int i = 0; i < N_PARTIAL; i++)
            parts[i] = scores[key + i] > parts[i] ? scores[key + i] : parts[i];
    float result = parts[0];
    for (int i = 1; i < N_PARTIAL; i++) result = parts[i] > result ? parts[i] : result;
    return result;
}

static inline float power(float x) {
    const struct exponential e = exponential(x);  // far below, of no use
    const float value = e.m * power_of_two(e.n);
    return x < LEAST ? 0.0f : value;
}

// Makes exp(score - most) of scores in place, and returns their sum.
static float weigh(float *scores, float most) {
    float parts[N_PARTIAL] = {0};
    for (int key = 0; key < ATTENTION_KEYS; key += N_PARTIAL)
        EACH_ALONE for (int i = 0; i < N_PARTIAL; i++) {
            const float weight = power(scores[key + i] - most);
            scores[key + i] = weight;
            parts[i] += weight;
        }
    float result = 0.0f;
    for (int i = 0; i < N_PARTIAL; i++) result += parts[i];
    return result;
}

// Asks for keys or values of some of the rows that come in the next tile: they lie apart, so no processor does.
static inline void fetch_rows(const float *from, size_t step, size_t length, size_t first, size_t end) {
    for (size_t row = first; row < end; row++)
        for (size_t i = 0; i < length; i += LINE) __builtin_prefetch(from + row * step + i);
}

// What is known of a row after some tiles.
struct so_far {
    float most, sum;
};

// Makes weights of the scores of a row, and fits `made` to the maximum that is there now.
static void take_scores(struct so_far *row, float *scores, const float *bias, size_t n, float *made, size_t width) {
    if (bias)
        for (size_t key = 0; key < n; key++) scores[key] += bias[key];
    for (size_t key = n; key < ATTENTION_KEYS; key++) scores[key] = -__builtin_inff();
    const float now = largest(scores), most = now > row->most ? now : row->most;
    // Where all is masked so far, weights are zero and not exp(-inf + inf).
    const float from = most == -__builtin_inff() ? 0.0f : most;
    const float rest = power(row->most - from);
    row->most = most;
    row->sum = fma_(row->sum, rest, weigh(scores, from));
    if (rest == 1.0f) return;
    for (size_t i = 0; i < width; i++) made[i] *= rest;
}

void NAMED(attention_part)(void *argument, size_t number) {
    struct attention *of = argument;
    const size_t n_parts = attention_parts_of_head(of->n_queries), n_each = attention_rows(of->n_queries, PANEL);
    const size_t first = number % n_parts * n_each, head = number / n_parts % of->n_heads;
    if (first >= of->n_queries) return;  // whole panels may need fewer parts
    const size_t image = number / n_parts / of->n_heads, width = padded(of->value_head);
    const size_t n_rows = of->n_queries - first < n_each ? of->n_queries - first : n_each;
    const size_t key_step = of->n_heads * of->head, value_step = of->n_heads * of->value_head;
    // On the heap, where it goes back: what a stack of a thread has touched stays.
    const size_t n_queries = ATTENTION_ROWS * of->head, n_made = ATTENTION_ROWS * width;
    const size_t n_keys = ATTENTION_KEYS * of->head, n_values = ATTENTION_KEYS * width;
    float *queries = aligned_alloc(LINE * sizeof *queries, (n_queries + n_made + n_keys + n_values) * sizeof *queries);
    if (!queries) {
        __atomic_store_n(&of->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *made = queries + n_queries, *keys = made + n_made, *values = keys + n_keys;
    float scores[PANEL * ATTENTION_KEYS] __attribute__((aligned(64)));
    struct so_far rows[ATTENTION_ROWS];
    const size_t first_row = image * of->n_queries + first;
    take_queries(queries, of, of->queries + first_row * key_step + head * of->head, n_rows);
    memset(made, 0, (n_rows + PANEL - 1) / PANEL * PANEL * width * sizeof *made);
    for (size_t row = 0; row < n_rows; row++) rows[row] = (struct so_far){-__builtin_inff(), 0.0f};
    const float *bias = of->bias;
    if (bias) bias += image * of->image_step + head * of->head_step + first * of->query_step;
    const float *all_keys = of->keys + image * of->n_keys * key_step + head * of->head;
    const float *all_values = of->values + image * of->n_keys * value_step + head * of->value_head;
    for (size_t key = 0; key < of->n_keys; key += ATTENTION_KEYS) {
        const size_t n = of->n_keys - key < ATTENTION_KEYS ? of->n_keys - key : ATTENTION_KEYS;
        take_keys(keys, of, all_keys + key * key_step, n);
        take_values(values, of, all_values + key * value_step, n);
        size_t fetched = key + n;
        for (size_t panel = 0; panel < n_rows; panel += PANEL) {
            const size_t more = fetched + FETCHED < of->n_keys ? fetched + FETCHED : of->n_keys;
            if (more <= key + 2 * ATTENTION_KEYS) {
                fetch_rows(all_keys, key_step, of->head, fetched, more);
                fetch_rows(all_values, value_step, of->value_head, fetched, more);
                fetched = more;
            }
            float *panel_made = made + panel * width;
            for (size_t column = 0; column < n; column += COLUMNS)
                multiply_panel(0, scores + column, ATTENTION_KEYS, queries + panel * of->head, 1, PANEL, keys + column,
                               ATTENTION_KEYS, of->head);
            for (size_t row = 0; row < PANEL && panel + row < n_rows; row++)
                take_scores(&rows[panel + row], scores + row * ATTENTION_KEYS,
                            bias ? bias + (panel + row) * of->query_step + key : NULL, n, panel_made + row * width,
                            width);
            for (size_t column = 0; column < width; column += COLUMNS)
                multiply_panel(1, panel_made + column, width, scores, ATTENTION_KEYS, 1, values + column, width, n);
        }
    }
    float *to = of->made + first_row * value_step + head * of->value_head;
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < of->value_head; i++)
            to[row * value_step + i] = made[row * width + i] / rows[row].sum;
    free(queries);
}
