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

// Columns of a block of products, and rows that are computed at once; numbers of a line of the cache, and rows
// of a later tile that are fetched meanwhile.
enum { COLUMNS = 2 * N_LANES, GROUP = N_LANES == 16 ? 96 : 48, LINE = 16, FETCHED = 15 };
_Static_assert(GROUP % PANEL == 0 && GROUP % COLUMNS == 0 && ATTENTION_ROWS % GROUP == 0, "whole blocks");
_Static_assert(ATTENTION_KEYS % PANEL == 0 && MAX_HEAD % COLUMNS == 0, "whole blocks");

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

// Queries as groups [channel][GROUP], times the scale; rows that fill the last one are zero.
static void take_queries(float *to, const struct attention *of, const float *from, size_t n_rows) {
    const size_t step = of->n_heads * of->head;
    for (size_t first = 0; first < n_rows; first += GROUP, to += of->head * GROUP)
        for (size_t row = 0; row < GROUP; row++)
            for (size_t i = 0; i < of->head; i++)
                to[i * GROUP + row] = first + row < n_rows ? of->scale * from[(first + row) * step + i] : 0.0f;
}

// Keys or values as [key][width], channels and keys filled up with zeros.
static void take_tokens(float *to, const float *from, size_t step, size_t head, size_t width, size_t n) {
    for (size_t key = 0; key < ATTENTION_KEYS; key++, to += width) {
        if (key < n) memcpy(to, from + key * step, head * sizeof *to);
        memset(key < n ? to + head : to, 0, (key < n ? width - head : width) * sizeof *to);
    }
}

static inline float power(float x) {
    const struct exponential e = exponential(x);  // far below, of no use
    const float value = e.m * power_of_two(e.n);
    return x < LEAST ? 0.0f : value;
}

// Asks for keys or values of some of the rows that come in the next tile: they lie apart, so no processor does.
static inline void fetch_rows(const float *from, size_t step, size_t length, size_t first, size_t end) {
    for (size_t row = first; row < end; row++)
        for (size_t i = 0; i < length; i += LINE) __builtin_prefetch(from + row * step + i);
}

// What is known of the rows of a group after some tiles.
struct so_far {
    float most[GROUP], sum[GROUP];
};

// Makes weights of `n` scores [key][GROUP], and what the results so far are multiplied by to fit to them. All
// rows at once: one after the other waits for itself.
static void weigh(struct so_far *rows, float *scores, size_t n, float *rest) {
    float most[GROUP], from[GROUP], sum[GROUP];
    memcpy(most, rows->most, sizeof most);
    for (size_t key = 0; key < n; key++)
        EACH_ALONE for (int row = 0; row < GROUP; row++)
            most[row] = scores[key * GROUP + row] > most[row] ? scores[key * GROUP + row] : most[row];
    EACH_ALONE for (int row = 0; row < GROUP; row++) {
        // Where all is masked so far, weights are zero and not exp(-inf + inf).
        from[row] = most[row] == -__builtin_inff() ? 0.0f : most[row];
        rest[row] = power(rows->most[row] - from[row]);
        sum[row] = rows->sum[row] * rest[row];
    }
    for (size_t key = 0; key < n; key++)
        EACH_ALONE for (int row = 0; row < GROUP; row++) {
            const float weight = power(scores[key * GROUP + row] - from[row]);
            scores[key * GROUP + row] = weight;
            sum[row] += weight;
        }
    memcpy(rows->most, most, sizeof most);
    memcpy(rows->sum, sum, sizeof sum);
}

static void add_bias(float *scores, const float *bias, size_t step, size_t n_rows, size_t n) {
    for (size_t row = 0; row < n_rows; row++, bias += step)
        for (size_t key = 0; key < n; key++) scores[key * GROUP + row] += bias[key];
}

// The keys of one tile, and what all rows of a part are computed of.
struct tile {
    const float *keys, *values, *bias;
    size_t n, head, width, query_step;
};

// Adds to `made`, rows of `width`, what the keys of a tile give a group of queries, of which `n_rows` are there.
static void take_tile(const struct tile *tile, struct so_far *rows, float *made, const float *queries,
                      size_t n_rows) {
    float scores[ATTENTION_KEYS * GROUP] __attribute__((aligned(64)));
    float rest[GROUP];
    if (n_rows < GROUP) memset(scores, 0, sizeof scores);
    for (size_t key = 0; key < tile->n; key += PANEL)
        for (size_t row = 0; row < n_rows; row += COLUMNS)
            multiply_panel(0, scores + key * GROUP + row, GROUP, tile->keys + key * tile->head, tile->head, 1,
                           queries + row, GROUP, tile->head);
    if (tile->bias) add_bias(scores, tile->bias, tile->query_step, n_rows, tile->n);
    weigh(rows, scores, tile->n, rest);
    for (size_t row = 0; row < n_rows; row++) {
        if (rest[row] == 1.0f) continue;
        for (size_t i = 0; i < tile->width; i++) made[row * tile->width + i] *= rest[row];
    }
    for (size_t row = 0; row < n_rows; row += PANEL)
        for (size_t column = 0; column < tile->width; column += COLUMNS)
            multiply_panel(1, made + row * tile->width + column, tile->width, scores + row, 1, GROUP,
                           tile->values + column, tile->width, tile->n);
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
    const size_t n_values = ATTENTION_KEYS * width, n_keys = ATTENTION_KEYS * of->head;
    const size_t n_all = (n_queries + n_made + n_keys + n_values + LINE - 1) / LINE * LINE;
    float *queries = aligned_alloc(LINE * sizeof *queries, n_all * sizeof *queries);
    if (!queries) {
        __atomic_store_n(&of->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *made = queries + n_queries, *values = made + n_made, *keys = values + n_values;
    struct so_far rows[ATTENTION_ROWS / GROUP];
    for (size_t row = 0; row < ATTENTION_ROWS; row++) {
        rows[row / GROUP].most[row % GROUP] = -__builtin_inff();
        rows[row / GROUP].sum[row % GROUP] = 0.0f;
    }
    const size_t first_row = image * of->n_queries + first;
    take_queries(queries, of, of->queries + first_row * key_step + head * of->head, n_rows);
    memset(made, 0, (n_rows + GROUP - 1) / GROUP * GROUP * width * sizeof *made);
    const float *bias = of->bias;
    if (bias) bias += image * of->image_step + head * of->head_step + first * of->query_step;
    const float *all_keys = of->keys + image * of->n_keys * key_step + head * of->head;
    const float *all_values = of->values + image * of->n_keys * value_step + head * of->value_head;
    for (size_t key = 0; key < of->n_keys; key += ATTENTION_KEYS) {
        const size_t n = of->n_keys - key < ATTENTION_KEYS ? of->n_keys - key : ATTENTION_KEYS;
        take_tokens(keys, all_keys + key * key_step, key_step, of->head, of->head, n);
        take_tokens(values, all_values + key * value_step, value_step, of->value_head, width, n);
        size_t fetched = key + n;
        for (size_t row = 0; row < n_rows; row += GROUP) {
            const size_t left = of->n_keys - fetched, more = fetched + (left < FETCHED ? left : FETCHED);
            fetch_rows(all_keys, key_step, of->head, fetched, more);
            fetch_rows(all_values, value_step, of->value_head, fetched, more);
            fetched = more;
            const struct tile tile = {
                keys, values, bias ? bias + row * of->query_step + key : NULL, n, of->head, width, of->query_step};
            take_tile(&tile, &rows[row / GROUP], made + row * width, queries + row * of->head,
                      n_rows - row < GROUP ? n_rows - row : GROUP);
        }
    }
    float *to = of->made + first_row * value_step + head * of->value_head;
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < of->value_head; i++)
            to[row * value_step + i] = made[row * width + i] / rows[row / GROUP].sum[row % GROUP];
    free(queries);
}
