// Runs chains: all steps on one block before the next one comes.
#include "chain.h"

#include <string.h>

#include "processors.h"

// Elements: of a block, from a block to the one that is fetched meanwhile, of a line of the cache.
enum { BLOCK = 1024, AHEAD = 4096, LINE = 16 };

// Element i of a chain takes one number of each channel.
static void spread(float *to, const struct tensor *from, size_t first, size_t n) {
    for (size_t done = 0; done < n;) {
        const size_t at = first + done;
        const size_t left = from->plane - at % from->plane;
        const size_t end = done + (left < n - done ? left : n - done);
        const float *numbers = from->data + at / from->plane * from->width;
        if (from->width == 1) {
            for (; done < end; done++) to[done] = *numbers;
            continue;
        }
        for (size_t i = at % from->width; done < end; done++) {
            to[done] = numbers[i];
            i = i + 1 == from->width ? 0 : i + 1;
        }
    }
}

// Returns where the elements of `place` from `first` on are; a tensor of channels is spread to `spare`.
static const float *reads(const struct chain *chain, int32_t place, size_t first, size_t n,
                          float (*blocks)[BLOCK], float *spare) {
    if (place >= MAX_TENSORS) return blocks[place - MAX_TENSORS];
    const struct tensor *tensor = &chain->tensors[place];
    if (!tensor->plane) return tensor->data + first;
    spread(spare, tensor, first, n);
    return spare;
}

// Asks for a block of what is read soon: a processor alone looks ahead no further than a page.
static void fetch(const struct chain *chain, size_t first, size_t end) {
    if (first >= end) return;
    const size_t n = end - first < BLOCK ? end - first : BLOCK;
    for (int place = 0; place < MAX_TENSORS; place++) {
        const struct tensor *tensor = &chain->tensors[place];
        if (!tensor->data || tensor->plane) continue;
        for (size_t at = first; at < first + n; at += LINE) __builtin_prefetch(tensor->data + at, 1);
    }
}

void compute(const struct chain *chain, size_t first, size_t end) {
    float blocks[MAX_BLOCKS][BLOCK] __attribute__((aligned(64)));
    float spare[2][BLOCK] __attribute__((aligned(64)));
    for (size_t at = first; at < end; at += BLOCK) {
        const size_t n = end - at < BLOCK ? end - at : BLOCK;
        fetch(chain, at + AHEAD, end);
        for (int32_t number = 0; number < chain->n_steps; number++) {
            const struct step *step = &chain->steps[number];
            const float *a = reads(chain, step->a, at, n, blocks, spare[0]);
            const float *b = reads(chain, step->b, at, n, blocks, spare[1]);
            float *to = step->to >= MAX_TENSORS ? blocks[step->to - MAX_TENSORS]
                                                 : chain->tensors[step->to].data + at;
            kernels[step->operator](to, a, b, n, step->p, step->q);
        }
    }
}
