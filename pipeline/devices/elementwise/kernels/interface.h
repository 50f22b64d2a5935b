// Written by `python -m tools.c_headers` from pipeline/devices/interface/native.py: change it there.
#ifndef ELEMENTWISE_INTERFACE_H
#define ELEMENTWISE_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

#define AT(type, member, at) _Static_assert(offsetof(struct type, member) == at, #type "." #member);
#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == bytes, "size of " #type);

// By the names of their kernels: a kind of models/network/activations.py each; ..._number: of one value and
// p.
#define OPERATORS(EACH) \
    EACH(copy) EACH(add) EACH(subtract) EACH(multiply) EACH(divide) EACH(modulo) EACH(larger) EACH(smaller) \
    EACH(add_number) EACH(multiply_number) EACH(divide_number) EACH(modulo_number) EACH(larger_number) \
    EACH(smaller_number) EACH(negative) EACH(clip) EACH(leaky_relu) EACH(hard_sigmoid) EACH(hard_swish) \
    EACH(sigmoid) EACH(silu) EACH(softsign) EACH(tanh) EACH(mish) EACH(celu) EACH(erf) EACH(gelu)
enum { N_OPERATORS = 27 };

// Tensors of a chain, and blocks of memory in between; axes of a node. A chain has any number of steps.
enum {
    MAX_TENSORS = 12, MAX_BLOCKS = 6, MAX_AXES = 8,
};

// Elements from which on several threads compute a chain.
enum {
    WORTH_SHARING = 16384,
};

// Operators of ours in graphs of ONNX Runtime, and the attribute of a chain.
#define DOMAIN_NAME "layerstream"
#define CHAIN_NAME "Chain"
#define JOB_NAME "Job"
#define ATTENTION_NAME "MultiHeadAttention"
#define PROGRAM_NAME "program"

// Rows of queries that a thread computes attention of, keys of a tile, and the largest head.
enum {
    ATTENTION_ROWS = 192, ATTENTION_KEYS = 60, MAX_HEAD = 128,
};

// One tensor of a chain: as many elements as the chain has, or one for each channel: element i of the chain
// takes number (i / plane) * width + i % width of it. `plane` 0: the first kind.
struct tensor {
    float *data;
    size_t plane, width;
};
SIZE(tensor, 24) AT(tensor, data, 0) AT(tensor, plane, 8) AT(tensor, width, 16)

// Places below MAX_TENSORS are tensors, the others blocks of memory that is in between.
struct step {
    int32_t operator, to, a, b;
    float p, q;
};
SIZE(step, 24) AT(step, operator, 0) AT(step, to, 4) AT(step, a, 8) AT(step, b, 12) AT(step, p, 16)
AT(step, q, 20)

// A chain: steps on elements that follow each other, and the tensors that they read and write.
struct chain {
    size_t n_elements;
    int32_t n_steps;
    const struct step *steps;
    struct tensor tensors[MAX_TENSORS];
};
SIZE(chain, 312) AT(chain, n_elements, 0) AT(chain, n_steps, 8) AT(chain, steps, 16) AT(chain, tensors, 24)

// How stored weights lie (models/packs/storing.py); bytes of no part are zero.
enum encoding {
    ZERO, BYTES, FLOAT16, BFLOAT16, INT8, PLANES, N_ENCODINGS,
};

enum {
    N_PLANES = 4, BLOCK_NUMBERS = 256, DICTIONARY_BYTES = 16, MAX_BITS = 4, WHOLE_BITS = 8,
};

// `length` bytes at `to` of the target, made of what is at `start` of the source. Of INT8 these are numbers
// [channels / block][..][block], with `scales` at another place of the source. Of PLANES whole blocks of
// numbers: `bits` of a code (WHOLE_BITS: the byte itself) and `exceptions` of each plane; `kept` of the
// numbers, those that are not zero (0: all).
struct stretch {
    int32_t encoding;
    uint32_t block;
    size_t channels, to, length, start, scales, kept;
    size_t exceptions[N_PLANES];
    uint8_t bits[N_PLANES];
};
SIZE(stretch, 96) AT(stretch, encoding, 0) AT(stretch, block, 4) AT(stretch, channels, 8)
AT(stretch, to, 16) AT(stretch, length, 24) AT(stretch, start, 32) AT(stretch, scales, 40)
AT(stretch, kept, 48) AT(stretch, exceptions, 56) AT(stretch, bits, 88)

// What turns a signed byte into an unsigned one, by exclusive or.
enum {
    FLIP = 128,
};

// Of a table: one for each byte.
enum {
    TABLE_BYTES = 256,
};

// Layers of a task, and tensors that lie one behind the other in what the first of them reads.
enum {
    MAX_LAYERS = 3, MAX_CONCATENATED = 8,
};

// Numbers that make a byte of another: their places, since weights and scales may be streamed. `flip`: FLIP
// of signed bytes, else 0.
struct scaled {
    const float *scale;
    const uint8_t *zero;
    int32_t flip;
};
SIZE(scaled, 24) AT(scaled, scale, 0) AT(scaled, zero, 8) AT(scaled, flip, 16)

// A convolution of `channels` to `filters`, or of each channel by itself (`depthwise`). Weights are
// [filters, channels, kernel_y, kernel_x], or [channels, filters] (`by_inputs`, one pixel). A scale and a
// zero point for all filters, or for each (`scales_apart`, `zeros_apart`).
struct layer {
    const uint8_t *weights;
    const int32_t *bias;  // NULL: none
    struct scaled given, weight, made;
    int32_t scales_apart, zeros_apart, by_inputs, depthwise;
    int32_t channels, filters;
    int32_t kernel_y, kernel_x, stride_y, stride_x, step_y, step_x, above, left;
    int32_t height, width, made_height, made_width;
};
SIZE(layer, 160) AT(layer, weights, 0) AT(layer, bias, 8) AT(layer, given, 16) AT(layer, weight, 40)
AT(layer, made, 64) AT(layer, scales_apart, 88) AT(layer, zeros_apart, 92) AT(layer, by_inputs, 96)
AT(layer, depthwise, 100) AT(layer, channels, 104) AT(layer, filters, 108) AT(layer, kernel_y, 112)
AT(layer, kernel_x, 116) AT(layer, stride_y, 120) AT(layer, stride_x, 124) AT(layer, step_y, 128)
AT(layer, step_x, 132) AT(layer, above, 136) AT(layer, left, 140) AT(layer, height, 144)
AT(layer, width, 148) AT(layer, made_height, 152) AT(layer, made_width, 156)

// A sum of two tensors; `over`: which of them the last layer makes.
struct addition {
    struct scaled first, second, made;
    const uint8_t *other;  // NULL: nothing is added
    int32_t over;
};
SIZE(addition, 88) AT(addition, first, 0) AT(addition, second, 24) AT(addition, made, 48)
AT(addition, other, 72) AT(addition, over, 80)

// Planes of floats of which a rectangle is quantised and turned: channels lie last then.
struct picture {
    const float *planes;  // NULL: the first layer reads bytes
    size_t plane, line;  // floats from one plane, one line, to the next
    int32_t first_line, first_column;  // of the rectangle; the line is the one that `planes` begins with
    struct scaled made;
};
SIZE(picture, 56) AT(picture, planes, 0) AT(picture, plane, 8) AT(picture, line, 16)
AT(picture, first_line, 24) AT(picture, first_column, 28) AT(picture, made, 32)

// Tensors that lie one behind the other in the channels that the first layer reads, all in one scale.
struct joined {
    int32_t count;  // 0: it reads one, where it lies
    int32_t channels[MAX_CONCATENATED];
    const uint8_t *parts[MAX_CONCATENATED];
    struct scaled given[MAX_CONCATENATED];
    struct scaled made;
};
SIZE(joined, 320) AT(joined, count, 0) AT(joined, channels, 4) AT(joined, parts, 40) AT(joined, given, 104)
AT(joined, made, 296)

// The largest bytes of windows of what a layer makes; windows may begin above and left of it.
struct pool {
    int32_t kernel_y, kernel_x;  // 0: there is none
    int32_t stride_y, stride_x, above, left, made_height, made_width;
};
SIZE(pool, 32) AT(pool, kernel_y, 0) AT(pool, kernel_x, 4) AT(pool, stride_y, 8) AT(pool, stride_x, 12)
AT(pool, above, 16) AT(pool, left, 20) AT(pool, made_height, 24) AT(pool, made_width, 28)

// One layer, and maxima of it, or a sum; or layers of which one is depthwise: some channels of it at a time
// (`group`), some rows of the last one at a time (`rows`), whose sums are in memory of the task. Rows
// [first_row, end_row) of the last layer, or of its maxima, are made. `n_parts` may run at once, in memory
// of `n_bytes` with places for `n_places`; that and `cost`, about the nanoseconds of one part alone, says
// integers_fit. What follows `cost` up to `memory` is of one run.
struct task {
    int32_t n_layers, depthwise;  // which of the layers is depthwise; -1: none
    int32_t group, rows, first_row, end_row, n_parts, n_places;
    size_t n_bytes;
    double cost;
    int32_t failed, state, next, ended;
    uint8_t *memory;
    const uint8_t *given;
    uint8_t *made;
    const uint8_t *table;  // what bytes of a layer alone, or of its maxima, become; NULL: they stay
    struct picture picture;
    struct joined joined;
    struct addition addition;
    struct pool pool;
    struct layer layers[MAX_LAYERS];
};
SIZE(task, 1072) AT(task, n_layers, 0) AT(task, depthwise, 4) AT(task, group, 8) AT(task, rows, 12)
AT(task, first_row, 16) AT(task, end_row, 20) AT(task, n_parts, 24) AT(task, n_places, 28)
AT(task, n_bytes, 32) AT(task, cost, 40) AT(task, failed, 48) AT(task, state, 52) AT(task, next, 56)
AT(task, ended, 60) AT(task, memory, 64) AT(task, given, 72) AT(task, made, 80) AT(task, table, 88)
AT(task, picture, 96) AT(task, joined, 152) AT(task, addition, 472) AT(task, pool, 560)
AT(task, layers, 592)

// The average of each channel of `pixels` pixels.
struct average {
    const uint8_t *given;
    uint8_t *made;
    struct scaled source, target;
    int32_t channels, pixels;
};
SIZE(average, 72) AT(average, given, 0) AT(average, made, 8) AT(average, source, 16) AT(average, target, 40)
AT(average, channels, 64) AT(average, pixels, 68)

// What the library was compiled from.
const char *elementwise_sources(void);

// What the kernels in use are called; empty where the processor can run none.
const char *elementwise_processor(void);

// Takes the kernels called `name`, or with an empty name the widest. Returns whether there are any; nothing
// may run.
int elementwise_choose(const char *name);

// Runs a chain on the thread that calls.
void elementwise_run(const struct chain *chain);

// Has the next operator `Job` that this thread runs do a chain; NULL: nothing.
void elementwise_hand_over(struct chain *chain);

// Writes to `target` what `source` stands for. All places are multiples of four bytes, and checked before.
void elementwise_expand(const struct stretch *stretches, size_t count, const uint8_t *source, uint8_t *target);

// Chooses groups and rows of a task for memory of about `most` bytes, and returns what it takes.
size_t integers_fit(struct task *task, size_t most);

// Runs a task, one part after the other; returns whether memory was short.
int integers_run(struct task *task);

// As elementwise_hand_over, a task.
void integers_hand_over(struct task *task);

// Computes an average.
void integers_average(const struct average *average);

// Lets quantised layers use the processor's products of four bytes, or not. No task may run.
void integers_use_dot_products(int wanted);

#endif
