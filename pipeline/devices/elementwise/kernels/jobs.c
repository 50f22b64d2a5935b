// Jobs: chains and quantised layers on the thread that asks, or handed to an operator of ONNX Runtime.
//
// The operator finds its job by the thread that runs the session, not in its graph: no file can name an address.
#include "jobs.h"

#include "processors.h"

static _Thread_local struct job held;
static _Thread_local int is_held;

const struct job *elementwise_take_job(void) {
    if (!is_held) return NULL;
    is_held = 0;
    return &held;
}

static struct job job_of(struct task *task) {
    task->failed = task->state = task->next = task->ended = 0;
    return (struct job){integer_kernels->part, task, (size_t)task->n_parts};
}

int integers_run(struct task *task) {
    const struct job job = job_of(task);
    for (size_t number = 0; number < job.n_parts; number++) job.part(job.argument, number);
    return task->failed;
}

void integers_hand_over(struct task *task) {
    is_held = task != NULL;
    if (task) held = job_of(task);
}

void elementwise_run(const struct chain *chain) { compute(chain, 0, chain->n_elements); }

void elementwise_chain_part(void *argument, size_t number) {
    const struct chain *chain = argument;
    const size_t first = number * CHAIN_PART, left = chain->n_elements - first;
    compute(chain, first, first + (left < CHAIN_PART ? left : CHAIN_PART));
}

void elementwise_hand_over(struct chain *chain) {
    is_held = chain != NULL;
    if (!chain) return;
    held = (struct job){elementwise_chain_part, chain, (chain->n_elements + CHAIN_PART - 1) / CHAIN_PART};
}

size_t integers_fit(struct task *task, size_t most) { return integer_kernels->fit(task, most); }

void integers_average(const struct average *average) { integer_kernels->average(average); }
