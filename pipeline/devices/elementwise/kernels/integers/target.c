// Quantised layers for one processor (-DTARGET=avx2), and what runs and measures them.
#include "bottleneck.h"

#define JOINED(name, target) name##_##target
#define EXPANDED(name, target) JOINED(name, target)
#define NAMED(name) EXPANDED(name, TARGET)

// Runs part `part`; without memory `at` only counts what the task takes.
static size_t run(struct task *task, int part, uint8_t *at) {
    if (task->depthwise >= 0) return bottleneck(task, part, at);
    const size_t own = task->n_bytes / (size_t)task->n_places;
    return dense(task, part, at ? at + (size_t)part * own : NULL) * (size_t)task->n_places;
}

static void begin(struct task *task) {
    if (task->depthwise >= 0) begin_bottleneck(task);
}

static void part(void *argument, size_t number) {
    struct task *task = argument;
    uint8_t *memory = open_memory(task, begin);
    if (memory) run(task, (int)number, memory);
    close_memory(task);
}

// Nanoseconds of a multiplication, where nothing else counts.
static const double multiplied = 0.004;

enum { MOST_GROUP = 64 };

static size_t counted(struct task *task) {
    task->n_bytes = 0;
    return run(task, 0, NULL);
}

// Packed weights of a group that stay in a core's cache while all pixels are multiplied with them.
static const size_t cached = 32 << 10;

static size_t packed_bytes(const struct task *task) {
    const struct layer *of = &task->layers[0];
    const size_t depth = makes_rows(task) ? made_depth(of) : (size_t)of->channels;
    return laid_of(of, depth).total * (size_t)task->group * sizeof(tap);
}

// As many filters as a part has; then fewer until they fit, and stay in a cache.
static void fit_dense(struct task *task, size_t most) {
    const struct layer *of = &task->layers[0];
    const double products = (double)taps_of(of) * of->channels * of->filters;
    const double pixels = (double)of->made_height * of->made_width;
    const double given = makes_rows(task) ? 5.0 * of->height * of->width * of->channels / LANES : 0;
    const double written = 3.0 * (double)rounded((size_t)of->filters, LANES) / LANES;
    task->cost = pixels * (multiplied * products + written) + given;
    const int panels = (of->filters + LANES - 1) / LANES, parts = divides_filters(task) ? task->n_parts : 1;
    task->group = (panels + parts - 1) / parts * LANES;
    while ((counted(task) > most || packed_bytes(task) > cached) && task->group > LANES)
        task->group = greater((int)rounded((size_t)task->group / 2, LANES), LANES);
}

// About the nanoseconds of a band, for each of its rows and channels: rows that two bands make, sums that are
// read and written for each group, which waits for another part, weights that are packed for each band. Measured
// with AVX-512 on patchnet's layers, within 5 %.
static double cost(const struct task *task) {
    const struct layer *first = &task->layers[0], *middle = &task->layers[task->depthwise];
    const struct layer *last = task->n_layers - 1 > task->depthwise ? &task->layers[task->n_layers - 1] : NULL;
    const double rows = task->rows, group = task->group, panels = group / LANES;
    const double inputs = task->depthwise ? first->channels * (double)taps_of(first) : 0;
    const double made = rows * middle->stride_y + middle->kernel_y - middle->stride_y;
    const double before = made * middle->width * panels * (5 + 0.015 * inputs);
    const double outputs = last ? (double)rounded((size_t)last->filters, LANES) : 0;
    const double after = outputs / LANES * (3.5 + 0.01 * group);
    const double pixels = rows * middle->made_width * (panels * 4.5 + after);
    const double packing = (task->n_places > 1 ? 400 : 200) + group * 0.05 * (inputs + outputs);
    return (before + pixels + packing) / (rows * group);
}

// The best group and number of rows, whatever the number of inner channels: so memory does not depend on it.
static void fit_bottleneck(struct task *task, size_t most) {
    const int height = task->layers[task->n_layers - 1].made_height, has_sums = task->n_layers - 1 > task->depthwise;
    // Without sums parts are to have some rows each, and groups are sixteen channels.
    const int most_rows = has_sums ? height : (height + task->n_places - 1) / task->n_places;
    int group = LANES, rows = 1;
    double least = -1;
    for (task->group = LANES; task->group <= (has_sums ? MOST_GROUP : LANES); task->group *= 2) {
        for (task->rows = 1; task->rows <= most_rows && counted(task) <= most; task->rows++) {
            const double now = cost(task);
            if (least < 0 || now < least) least = now, group = task->group, rows = task->rows;
        }
    }
    task->group = group;
    task->rows = rows;
    task->cost = least * height * (double)rounded((size_t)task->layers[task->depthwise].channels, LANES);
}

static size_t fit(struct task *task, size_t most) {
    if (task->depthwise < 0) {
        fit_dense(task, most);
    } else {
        fit_bottleneck(task, most);
    }
    return task->n_bytes = counted(task);
}

// The average of each channel, as ONNX Runtime has it of channels that lie last.
static void average(const struct average *of) {
    const int32_t zero = zero_of(&of->source);
    const float factor = *of->source.scale / (*of->target.scale * (float)of->pixels);
    const struct rounding how = rounding_of(&of->target, NULL, of->target.flip);
    for (int c = 0; c < of->channels; c += LANES) {
        const int n = lesser(LANES, of->channels - c);
        int32_t sums[LANES] = {0};
        float factors[LANES];
        const uint8_t *from = of->given + c;
        for (int i = 0; i < of->pixels; i++, from += of->channels) {
            for (int m = 0; m < n; m++) sums[m] += from[m] ^ of->source.flip;
        }
        for (int m = 0; m < LANES; m++) {
            sums[m] -= zero * of->pixels;
            factors[m] = factor;
        }
        round_sums(sums, factors, &how, n, of->made + c);
    }
}

const struct integers NAMED(integers) = {fit, part, average};
