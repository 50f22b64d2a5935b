// Sums of a band that groups are added to by all parts of a task, and what is made of them.
//
// Each part has a share of the sums: some filters of all pixels, or some pixels. Any part makes the next group, a
// byte for each pixel and channel; it is added to each share by the part that has it: so bytes go from core to core,
// not sums. Who finds nothing else to do adds to the shares of others, which may have yet to begin; who waits waits
// for one that computes.
#ifndef INTEGERS_SUMS_H
#define INTEGERS_SUMS_H

#include "addition.h"
#include "memory.h"
#include "packing.h"

enum { CACHE_LINE = 64 };

// `next`: of all groups of all bands, one behind the other, those before were added.
struct share {
    int32_t busy, next;
    uint8_t apart[CACHE_LINE - 8];
};

// Memory for what a group makes of a band; `ready`: the number of that group, and one.
struct slot {
    int32_t ready;
    uint8_t apart[CACHE_LINE - 4];
};

struct sums {
    struct task *task;
    const struct layer *of;  // the last one; NULL: the depthwise layer makes the result
    int parts, groups, n_items, n_slots, has_zeros, by_filters;
    size_t width, filters;  // rounded filters
    struct share *shares;
    struct slot *slots;
    int32_t *fixed, *sums;  // `fixed`: what does not depend on pixels, for each share
    pixel *made;            // of all slots
    tap *panel;             // of the part
};

static size_t slot_pixels(const struct sums *sums) {
    return (size_t)sums->task->rows * sums->width * (size_t)sums->task->group;
}

static struct sums open_sums(struct task *task, struct memory *memory) {
    const struct layer *middle = &task->layers[task->depthwise];
    const int rows = task->end_row - task->first_row, bands = (rows + task->rows - 1) / task->rows;
    struct sums sums = {.task = task, .parts = task->n_parts};
    sums.groups = (middle->channels + task->group - 1) / task->group;
    sums.n_items = bands * sums.groups;
    if (task->n_layers - 1 == task->depthwise) return sums;
    const size_t places = (size_t)task->n_places;
    sums.of = &task->layers[task->n_layers - 1];
    sums.width = (size_t)middle->made_width;
    sums.filters = rounded((size_t)sums.of->filters, LANES);
    sums.by_filters = sums.filters / LANES >= places;
    // One for what each part makes, and one more: they do not wait for each other at once.
    sums.n_slots = task->n_places;
    sums.shares = take(memory, places * sizeof *sums.shares);
    sums.slots = take(memory, (size_t)sums.n_slots * sizeof *sums.slots);
    sums.fixed = take(memory, (sums.by_filters ? 1 : places) * sums.filters * sizeof *sums.fixed);
    sums.sums = take(memory, (size_t)task->rows * sums.width * sums.filters * sizeof *sums.sums);
    sums.made = take(memory, (size_t)sums.n_slots * slot_pixels(&sums) * sizeof *sums.made);
    sums.has_zeros = memory->at && any_weight_zero(sums.of);
    return sums;
}

static void begin_sums(const struct sums *sums) {
    memset(sums->shares, 0, (size_t)sums->parts * sizeof *sums->shares);
    memset(sums->slots, 0, (size_t)sums->n_slots * sizeof *sums->slots);
    for (int i = 0; i < (sums->by_filters ? 1 : sums->parts); i++) {
        int32_t *fixed = sums->fixed + (size_t)i * sums->filters;
        memset(fixed, 0, sums->filters * sizeof *fixed);
        add_bias(sums->of, 0, sums->of->filters, fixed);
    }
}

// Pixels [pixel, last) of a band and filters [filter, end), whose sums and bytes are `from` and `to` on.
struct range {
    size_t pixel, last;
    int filter, end;
    int32_t *sums, *fixed;
};

// The same in every band, or a share would begin the next one over another's sums.
static struct range range_of(const struct sums *sums, int share, size_t pixels) {
    const size_t parts = (size_t)sums->parts, at = (size_t)share, panels = sums->filters / LANES;
    if (sums->by_filters) {
        const int end = lesser((int)(panels * (at + 1) / parts) * LANES, sums->of->filters);
        return (struct range){0, pixels, (int)(panels * at / parts) * LANES, end, sums->sums, sums->fixed};
    }
    const size_t all = (size_t)sums->task->rows * sums->width, first = all * at / parts, last = all * (at + 1) / parts;
    return (struct range){first < pixels ? first : pixels, last < pixels ? last : pixels, 0, sums->of->filters,
                          sums->sums, sums->fixed + at * sums->filters};
}

// Rounds the sums of a share and writes them; the band's first pixel is the result's pixel `first`.
static void write_sums(const struct sums *sums, const struct range *range, size_t first) {
    const struct layer *of = sums->of;
    const struct rounding how = rounding_of(&of->made, NULL, of->made.flip);
    const struct addition *by = &sums->task->addition;
    const struct factors with = by->other ? factors_of(by) : (struct factors){0};
    const size_t filters = (size_t)of->filters;
    for (int m = range->filter; m < range->end; m += LANES) {
        const int n = lesser(LANES, range->end - m);
        float factors[LANES];
        pack_factors(of, m, n, factors);
        for (size_t i = range->pixel; i < range->last; i += 4) {
            const int count = range->last - i < 4 ? (int)(range->last - i) : 4;
            const size_t at = (first + i) * filters + (size_t)m;
            uint8_t *to = sums->task->made + at;
            int32_t all[4 * LANES];
            for (int j = 0; j < count; j++) {
                const int32_t *each = range->sums + (i + (size_t)j) * sums->filters + m;
                for (int c = 0; c < LANES; c++) all[j * LANES + c] = each[c] + range->fixed[m + c];
            }
            round_pixels(count, all, LANES, factors, &how, n, to, filters);
            for (size_t j = 0; by->other && j < (size_t)count; j++)
                add_other(by, &with, by->other + at + j * filters, (size_t)n, to + j * filters);
        }
    }
}

// Adds n channels that were made of a share's pixels to sixteen filters; `is_new`: there are no sums yet.
static void add_panel(const struct sums *sums, const struct range *range, int m, size_t n, int is_new,
                      const pixel *made) {
    static const int32_t nothing[LANES];
    static const ptrdiff_t start[1];
    const size_t group = (size_t)sums->task->group;
    const struct runs runs = {1, rounded(n, TOGETHER), start};
    for (size_t i = range->pixel, count; i < range->last; i += count) {
        int32_t *to = range->sums + i * sums->filters + m;
        const pixel *x[TILE];
        count = (size_t)next_tile((int)(range->last - i));
        for (size_t j = 0; j < count; j++) x[j] = made + (i + j) * group;
        multiply_tile((int)count, x, &runs, sums->panel, is_new ? nothing : to, is_new ? 0 : sums->filters, to,
                      sums->filters);
        for (size_t j = 0; sums->has_zeros && j < count; j++)
            take_weight_zeros(sums->of, m, lesser(LANES, range->end - m), x[j], &runs, n, to + j * sums->filters);
    }
}

// Adds group `item` to a share, and writes that if it was the last one of its band.
static void add_item(const struct sums *sums, int share, int item) {
    const struct task *task = sums->task;
    const struct layer *of = sums->of;
    const int band = item / sums->groups, number = item % sums->groups, start = task->first_row + band * task->rows;
    const int rows = lesser(task->rows, task->end_row - start), first = number * task->group;
    const size_t n = (size_t)lesser(task->group, of->channels - first), length = rounded(n, TOGETHER);
    const struct laid laid = {n, length, length};
    const struct range range = range_of(sums, share, (size_t)rows * sums->width);
    const pixel *made = sums->made + (size_t)(item % sums->n_slots) * slot_pixels(sums);
    for (int m = range.filter; m < range.end; m += LANES) {
        const int filters = lesser(LANES, range.end - m);
        pack_panel(of, &laid, m, filters, first, (int)n, NULL, sums->panel);
        if (!band) add_fixed(of, sums->has_zeros, &laid, m, filters, sums->panel, n, range.fixed + m);
        add_panel(sums, &range, m, n, !number, made);
    }
    if (number == sums->groups - 1) write_sums(sums, &range, (size_t)start * sums->width);
}

static int is_ready(const struct sums *sums, int item) {
    if (item >= sums->n_items) return 0;
    return __atomic_load_n(&sums->slots[item % sums->n_slots].ready, __ATOMIC_ACQUIRE) == item + 1;
}

// Adds the next group to a share, if it was made and nobody does; returns whether.
static int add_next(const struct sums *sums, int number) {
    struct share *share = &sums->shares[number];
    if (!is_ready(sums, __atomic_load_n(&share->next, __ATOMIC_RELAXED))) return 0;
    if (__atomic_exchange_n(&share->busy, 1, __ATOMIC_ACQUIRE)) return 0;
    const int item = __atomic_load_n(&share->next, __ATOMIC_RELAXED), found = is_ready(sums, item);
    if (found) {
        add_item(sums, number, item);
        __atomic_store_n(&share->next, item + 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&share->busy, 0, __ATOMIC_RELEASE);
    return found;
}

// Whether all shares have groups up to `item`.
static int have_added(const struct sums *sums, int item) {
    for (int i = 0; i < sums->parts; i++) {
        if (__atomic_load_n(&sums->shares[i].next, __ATOMIC_ACQUIRE) <= item) return 0;
    }
    return 1;
}

// The next group to make, if there is memory for it; -1: none.
static int next_group(const struct sums *sums) {
    int32_t *next = &sums->task->next;
    int32_t item = __atomic_load_n(next, __ATOMIC_RELAXED);
    if (item >= sums->n_items || !have_added(sums, item - sums->n_slots)) return -1;
    const int is_mine = __atomic_compare_exchange_n(next, &item, item + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return is_mine ? item : -1;
}

// Says that group `item` was made.
static void hand_on(const struct sums *sums, int item) {
    __atomic_store_n(&sums->slots[item % sums->n_slots].ready, item + 1, __ATOMIC_RELEASE);
}

// Adds to the share of part `part`, or else to that of another; returns whether there was anything to add.
static int add_to_others(const struct sums *sums, int part) {
    for (int i = 1; i < sums->parts; i++) {
        if (add_next(sums, (part + i) % sums->parts)) return 1;
    }
    return 0;
}

#endif
