// Memory of a task: one block, taken piece by piece, for all of its parts.
#ifndef INTEGERS_MEMORY_H
#define INTEGERS_MEMORY_H

#include <sched.h>
#include <stdlib.h>

#include "arithmetic.h"

// Without `at` only counted.
struct memory {
    uint8_t *at;
    size_t used;
};

static void *take(struct memory *from, size_t n_bytes) {
    void *found = from->at ? from->at + from->used : NULL;
    from->used += rounded(n_bytes, 64);
    return found;
}

// Of another thread, which computes: so never of one that has yet to begin.
static inline void wait_a_little(int *times) {
    if (++*times % 64 == 0) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    _mm_pause();
#endif
}

enum { NONE, TAKING, TAKEN, SHORT };

// The block of a task, from the first of its parts to begin until the last one has ended; NULL: there is no
// memory. `begin` writes what all parts share into it.
static uint8_t *open_memory(struct task *task, void (*begin)(struct task *task)) {
    int32_t none = NONE;
    if (__atomic_compare_exchange_n(&task->state, &none, TAKING, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        void *memory = NULL;
        const int failed = posix_memalign(&memory, 64, task->n_bytes);
        task->memory = failed ? NULL : memory;
        task->failed = failed;
        if (!failed) begin(task);
        __atomic_store_n(&task->state, failed ? SHORT : TAKEN, __ATOMIC_RELEASE);
    }
    for (int times = 0; __atomic_load_n(&task->state, __ATOMIC_ACQUIRE) == TAKING;) wait_a_little(&times);
    return task->memory;
}

static void close_memory(struct task *task) {
    if (__atomic_add_fetch(&task->ended, 1, __ATOMIC_ACQ_REL) == task->n_parts) free(task->memory);
}

#endif
