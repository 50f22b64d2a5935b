// Quantised layers whose channels lie last, in little memory: convolutions, and bottlenecks of three of them.
//
// pipeline/devices/integers/tasks.py has the same structures. Bits are those of ONNX Runtime: sums are
// exact, and each is rounded once, half to even. Inside, bytes are unsigned: `flip` (0x80) turns signed ones.
#ifndef INTEGERS_H
#define INTEGERS_H

#include <stddef.h>
#include <stdint.h>

// Numbers that make a byte of another: their places, since weights and scales may be streamed.
struct scaled {
    const float *scale;
    const uint8_t *zero;
    int32_t flip;
    int32_t unused;
};

// A convolution of `channels` to `filters`, or of each channel by itself (`depthwise`).
//
// Weights are [filters, channels, kernel_y, kernel_x], or [channels, filters] (`by_inputs`, one pixel). A scale
// and a zero point for all filters, or for each (`scales_apart`, `zeros_apart`).
struct layer {
    const uint8_t *weights;
    const int32_t *bias;  // NULL: none
    struct scaled given, weight, made;
    int32_t scales_apart, zeros_apart, by_inputs, depthwise;
    int32_t channels, filters;
    int32_t kernel_y, kernel_x, stride_y, stride_x, step_y, step_x, above, left;
    int32_t height, width, made_height, made_width;
};

// A sum of two tensors; `over`: which of them the last layer makes.
struct addition {
    struct scaled first, second, made;
    const uint8_t *other;  // NULL: nothing is added
    int32_t over;
    int32_t unused;
};

// Planes of floats of which a rectangle is quantised and turned: channels lie last then.
struct picture {
    const float *planes;  // NULL: the first layer reads bytes
    size_t plane, line;   // floats from one plane, one line, to the next
    int32_t first_line;   // of the rectangle: the one that `planes` begins with
    int32_t first_column;
    struct scaled made;
};

enum { MOST_JOINED = 8 };

// Tensors that lie one behind the other in the channels that the first layer reads, all in one scale.
struct joined {
    int32_t count;  // 0: it reads one, where it lies
    int32_t channels[MOST_JOINED];
    int32_t unused;
    const uint8_t *parts[MOST_JOINED];
    struct scaled from[MOST_JOINED], made;
};

// The largest bytes of windows of what a layer makes; windows may begin above and left of it.
struct pool {
    int32_t kernel_y, kernel_x;  // 0: there is none
    int32_t stride_y, stride_x, above, left, made_height, made_width;
};

enum { MOST_LAYERS = 3 };

// One layer, and maxima of it, or a sum; or layers of which one is depthwise: some channels of it at a time (`group`), some rows of the
// last one at a time (`rows`), whose sums are in memory of the task.
//
// Rows [first_row, end_row) of the last layer, or of its maxima, are made. `n_parts` may run at once, in memory of `n_bytes` with
// places for `n_places`; that and `cost`, about the nanoseconds of one part alone, says integers_fit. What follows
// `cost` up to `memory` is of one run.
struct task {
    int32_t n_layers, depthwise;  // which of the layers is; -1: none
    int32_t group, rows;
    int32_t first_row, end_row;
    int32_t n_parts, n_places;
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
    struct layer layers[MOST_LAYERS];
};

// The average of each channel of `pixels` pixels.
struct average {
    const uint8_t *given;
    uint8_t *made;
    struct scaled from, to;
    int32_t channels, pixels;
};

struct integers {
    // Chooses groups and rows of a task for memory of about `most` bytes, and says what it takes.
    size_t (*fit)(struct task *task, size_t most);
    void (*part)(void *task, size_t number);
    void (*average)(const struct average *average);
};

#endif
