// Parts of a job, which any threads compute in any order.
#ifndef ELEMENTWISE_JOBS_H
#define ELEMENTWISE_JOBS_H

#include <stddef.h>

struct job {
    void (*part)(void *argument, size_t number);
    void *argument;
    size_t n_parts;
};

// Runs all parts of `job`, on up to `wanted` threads of the pool, the caller among them (pool.c).
void elementwise_share(const struct job *job, int wanted);

// The job that this thread has ONNX Runtime's threads do; NULL: none. Whoever asks takes it (jobs.c).
const struct job *elementwise_take_job(void);

#endif
