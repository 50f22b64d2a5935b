// Attention in tiles: no tensor of scores is in memory.
#ifndef ELEMENTWISE_ATTENTION_H
#define ELEMENTWISE_ATTENTION_H

#include "interface.h"

// softmax(scale * queries keys^T + bias) values, for each image of a batch and each head. Rows of queries and
// of what is made are [heads][head] numbers apart, those of keys and values, too. `bias` NULL: none; rows of
// it are one number a key, and 0 numbers apart where all images, heads or queries share them.
struct attention {
    const float *queries, *keys, *values, *bias;
    float *made;
    size_t n_images, n_heads, n_queries, n_keys, head, value_head;
    size_t image_step, head_step, query_step;  // of the bias
    float scale;
    int failed;  // whether memory was short
};

// Computes part `number`: some rows of one head. All kernels make the same bits, however rows are divided.
typedef void attention_part(void *attention, size_t number);

// How many parts the queries of one head are, and how many rows one of them has, in whole panels.
static inline size_t attention_parts_of_head(size_t n_queries) {
    return (n_queries + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
}
static inline size_t attention_rows(size_t n_queries, size_t panel) {
    const size_t n_parts = attention_parts_of_head(n_queries);
    return ((n_queries + n_parts - 1) / n_parts + panel - 1) / panel * panel;
}

static inline size_t attention_parts(const struct attention *of) {
    return of->n_images * of->n_heads * attention_parts_of_head(of->n_queries);
}

#endif
