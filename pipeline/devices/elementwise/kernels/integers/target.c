// Quantised layers for one processor (-DTARGET=avx2), and what runs and measures them.
#include <stdlib.h>

#include "bottleneck.h"

#define JOINED(name, target) name##_##target
#define EXPANDED(name, target) JOINED(name, target)
#define NAMED(name) EXPANDED(name, TARGET)

static size_t run(struct task *task, size_t number, uint8_t *at) {
    return task->depthwise < 0 ? dense(task, number, at) : bottleneck(task, number, at);
}

static void part(void *argument, size_t number) {
    struct task *task = argument;
    uint8_t *memory = NULL;
    if (posix_memalign((void **)&memory, 64, task->n_bytes)) {
        __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    run(task, number, memory);
    free(memory);
}

// Nanoseconds of a multiplication, where nothing else counts.
static const double multiplied = 0.012;

// As many filters as a part has; then fewer until they fit.
static size_t fit_dense(struct task *task, size_t most) {
    const struct layer *of = &task->layers[0];
    const double products = (double)taps_of(of) * of->channels * of->filters;
    task->cost = multiplied * products * of->made_height * of->made_width;
    task->group = (int)rounded((size_t)task->layers[0].filters, LANES);
    size_t n_bytes = run(task, 0, NULL);
    while (n_bytes > most && task->group > LANES) {
        task->group = greater((int)rounded((size_t)task->group / 2, LANES), LANES);
        n_bytes = run(task, 0, NULL);
    }
    return n_bytes;
}

// About the nanoseconds of a band, for each of its rows and channels: rows that two bands make, sums that are
// read and written for each group, weights that are packed for each band. Measured with AVX-512.
static double cost(const struct task *task) {
    const struct layer *first = &task->layers[0], *middle = &task->layers[task->depthwise];
    const struct layer *last = task->n_layers - 1 > task->depthwise ? &task->layers[task->n_layers - 1] : NULL;
    const double rows = task->rows, group = task->group, panels = group / LANES;
    const double inputs = task->depthwise ? first->channels * (double)taps_of(first) : 0;
    const double made = rows * middle->stride_y + middle->kernel_y - middle->stride_y;
    const double gathered = task->depthwise && !reads_in_place(task) ? 10 + 0.3 * inputs : 0;
    const double before = made * middle->width * (gathered + panels * (5 + 0.07 * inputs));
    const double outputs = last ? (double)rounded((size_t)last->filters, LANES) : 0;
    const double after = outputs / LANES * (3 + 0.07 * group);
    const double pixels = rows * middle->made_width * (panels * 9 + after);
    const double packing = panels * 400 + group * 0.06 * (inputs + outputs);
    return (before + pixels + packing) / (rows * group);
}

static size_t fit_bottleneck(struct task *task, size_t most) {
    static const int groups[] = {64, 32, 16};
    const int height = task->layers[task->n_layers - 1].made_height;
    const int all = (int)rounded((size_t)task->layers[task->depthwise].channels, LANES);
    int group = LANES, rows = 1;
    double least = -1;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (groups[i] > all && groups[i] > LANES) continue;
        task->group = groups[i];
        for (task->rows = 1; task->rows <= height; task->rows++) {
            if (run(task, 0, NULL) > most) break;
            const double now = cost(task);
            if (least < 0 || now < least) least = now, group = task->group, rows = task->rows;
        }
    }
    task->group = group;
    task->rows = rows;
    task->cost = least * height * all;
    return run(task, 0, NULL);
}

static size_t fit(struct task *task, size_t most) {
    task->n_bytes = task->depthwise < 0 ? fit_dense(task, most) : fit_bottleneck(task, most);
    return task->n_bytes;
}

// The average of each channel, as ONNX Runtime has it of channels that lie last.
static void average(const struct average *of) {
    const int32_t zero = zero_of(&of->from);
    const float factor = *of->from.scale / (*of->to.scale * (float)of->pixels);
    const struct rounding how = rounding_of(&of->to, NULL, of->to.flip);
    for (int c = 0; c < of->channels; c += LANES) {
        const int n = lesser(LANES, of->channels - c);
        int32_t sums[LANES] = {0};
        float factors[LANES];
        const uint8_t *from = of->given + c;
        for (int i = 0; i < of->pixels; i++, from += of->channels) {
            for (int m = 0; m < n; m++) sums[m] += from[m] ^ of->from.flip;
        }
        for (int m = 0; m < LANES; m++) {
            sums[m] -= zero * of->pixels;
            factors[m] = factor;
        }
        round_sums(sums, factors, &how, n, of->made + c);
    }
}

const struct integers NAMED(integers) = {fit, part, average};
