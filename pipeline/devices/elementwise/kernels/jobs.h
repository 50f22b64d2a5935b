// Parts of a job, which any threads compute in any order.
#ifndef ELEMENTWISE_JOBS_H
#define ELEMENTWISE_JOBS_H

#include <stddef.h>

struct job {
    void (*part)(void *argument, size_t number);
    void *argument;
    size_t n_parts;
};

// Elements of a chain that are one part of a job, and such a part.
enum { CHAIN_PART = 8 << 10 };
void elementwise_chain_part(void *chain, size_t number);

// The job that this thread has ONNX Runtime's threads do; NULL: none. Whoever asks takes it (jobs.c).
const struct job *elementwise_take_job(void);

#endif
