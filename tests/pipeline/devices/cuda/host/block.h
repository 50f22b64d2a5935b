// A block of threads, one after the other: a thread runs until a barrier stops it or it ends.
//
// A fiber takes thread after thread of the block; one that stops at a barrier keeps its fiber, and
// another fiber takes the threads left. A kernel without barriers is thus a plain loop.
#pragma once

#include <cstring>

#include "fibers.h"

struct uint3 { unsigned int x, y, z; };
struct dim3 { unsigned int x, y, z; };

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

namespace host {

constexpr int warp_size = 32;
constexpr int no_line = 0;

struct Fiber {
    Context context;
    bool started;
    int thread;  // the one that waits here; -1: none
    int line;    // of the barrier that it waits at; no_line: it may go on
};

// What the lanes of a warp show each other, and how many of them have come to the barrier.
struct Warp {
    uint64_t shown[2][warp_size];
    int arrived, lanes, round, line;
};

struct Block {
    Fiber fibers[max_threads];
    int fiber_of[max_threads];  // by thread
    Warp warps[max_threads / warp_size];
    Context scheduler;
    Fiber* current;
    void (*kernel)(void**);
    void** parameters;
    int threads, next, ended, arrived, line;
    const char* error;
    int error_line;
};

static Block block;

static inline void fail(const char* error, int line) {
    if (block.error != nullptr) return;
    block.error = error;
    block.error_line = line;
}

static inline void pause() {
    Fiber* self = block.current;
    switch_context(&self->context, &block.scheduler);
    threadIdx.x = static_cast<unsigned int>(self->thread);
}

void fiber_main() {
    for (;;) {
        while (block.next < block.threads && block.error == nullptr) {
            Fiber& self = *block.current;
            self.thread = block.next++;
            block.fiber_of[self.thread] = static_cast<int>(&self - block.fibers);
            threadIdx.x = static_cast<unsigned int>(self.thread);
            block.kernel(block.parameters);
            ++block.ended;
            const Warp& warp = block.warps[self.thread / warp_size];
            if (warp.arrived > 0) fail("a thread ended while its warp waits", warp.line);
            self.thread = -1;
        }
        pause();
    }
}

static inline void wait_at(int line) {
    block.current->line = line;
    pause();
}

// The barrier of the block. The last thread to come goes on at once.
static inline void wait_for_block(int line) {
    if (block.arrived > 0 && block.line != line) {
        fail("threads of a block wait at different barriers", line);
    }
    block.line = line;
    if (++block.arrived == block.threads && block.error == nullptr) {
        block.arrived = 0;
        for (int thread = 0; thread < block.threads; ++thread) {
            block.fibers[block.fiber_of[thread]].line = no_line;
        }
        return;
    }
    wait_at(line);
}

static inline Warp& warp_of_thread() { return block.warps[threadIdx.x / warp_size]; }

static inline void wait_for_warp(int line) {
    Warp& warp = warp_of_thread();
    if (warp.arrived > 0 && warp.line != line) {
        fail("lanes of a warp wait at different barriers", line);
    }
    warp.line = line;
    if (++warp.arrived == warp.lanes && block.error == nullptr) {
        warp.arrived = 0;
        const int first = static_cast<int>(threadIdx.x) / warp_size * warp_size;
        for (int thread = first; thread < first + warp.lanes; ++thread) {
            block.fibers[block.fiber_of[thread]].line = no_line;
        }
        return;
    }
    wait_at(line);
}

// Shows a value to the warp and returns what its lanes show. Two sets of values in turn: no lane is
// two exchanges ahead of another, so one barrier is enough.
static inline const uint64_t* show(uint64_t value, int line) {
    Warp& warp = warp_of_thread();
    const int round = warp.arrived == 0 ? (warp.round ^= 1) : warp.round;
    warp.shown[round][threadIdx.x % warp_size] = value;
    wait_for_warp(line);
    return warp.shown[round];
}

// Returns the value of lane `from`, or the own one where there is no such lane.
template <class T> static inline T exchange(T value, int from, int line) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t* shown = show(bits, line);
    if (from < 0 || from >= warp_size) return value;
    T result;
    memcpy(&result, shown + from, sizeof result);
    return result;
}

// Fails where the hardware would: `stride` in bytes.
static inline void check_aligned(const void* address, size_t alignment, int stride) {
    const bool aligned = reinterpret_cast<uint64_t>(address) % alignment == 0 && stride % 16 == 0;
    if (!aligned) fail("a matrix is not aligned for tensor cores", no_line);
}

static inline int lane() { return static_cast<int>(threadIdx.x % warp_size); }

static void begin_block() {
    block.next = block.ended = block.arrived = 0;
    for (int w = 0; w * warp_size < block.threads; ++w) {
        const int lanes = block.threads - w * warp_size;
        block.warps[w].arrived = 0;
        block.warps[w].lanes = lanes < warp_size ? lanes : warp_size;
    }
}

// Runs fiber i until it pauses; false: it has nothing to do.
static bool run_fiber(int i) {
    Fiber& fiber = block.fibers[i];
    const bool idle = fiber.thread < 0 && block.next == block.threads;
    if (idle || fiber.line != no_line) return false;
    if (!fiber.started) {
        start_context(&fiber.context, stack_of(i));
        fiber.started = true;
    }
    block.current = &fiber;
    switch_context(&block.scheduler, &fiber.context);
    return true;
}

static void run_block() {
    begin_block();
    while (block.ended < block.threads && block.error == nullptr) {
        bool moved = false;
        for (int i = 0; i < block.threads; ++i) {
            moved |= run_fiber(i);
            if (block.ended == block.threads || block.error != nullptr) return;
        }
        if (!moved) fail("threads ended, or wait for others, while a barrier waits", block.line);
    }
}

// After an error: whatever still waits is forgotten.
static void drop_fibers() {
    for (Fiber& fiber : block.fibers) {
        fiber.started = false;
        fiber.thread = -1;
        fiber.line = no_line;
    }
}

}  // namespace host

#define __syncthreads() host::wait_for_block(__LINE__)
#define __syncwarp(...) host::wait_for_warp(__LINE__)
#define __shfl_sync(mask, value, from) host::exchange(value, (from) % host::warp_size, __LINE__)
#define __shfl_xor_sync(mask, value, bits) host::exchange(value, host::lane() ^ (bits), __LINE__)
#define __shfl_down_sync(mask, value, by) \
    host::exchange(value, host::lane() + static_cast<int>(by), __LINE__)
#define __shfl_up_sync(mask, value, by) \
    host::exchange(value, host::lane() - static_cast<int>(by), __LINE__)
