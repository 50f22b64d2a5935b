// The operators of the domain `layerstream`: what is ours inside a graph of ONNX Runtime, on its threads.
//
// `MultiHeadAttention` is in attention_operator.c. `Job` does what the thread that runs it was handed (jobs.h). `Chain` is a chain: inputs and outputs are
// floats, its attribute `program` is integers (operator_node.py writes them):
//   inputs, outputs, axes, steps; the length of each axis of an output; plane and width of each input;
//   operator, to, a, b, and the bits of p and q of each step.
// Places of tensors are the inputs and behind them the outputs. An output may be bound to an input's memory.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "attention_operator.h"
#include "chain.h"
#include "jobs.h"
#include "onnxruntime.h"
#include "processors.h"

// Integers of a program before the lengths of axes, of each input, of each step.
enum { HEAD = 4, OF_TENSOR = 2, OF_STEP = 6 };
_Static_assert(sizeof(struct step) == OF_STEP * sizeof(int32_t), "an integer for each member of a step");

struct node {
    table functions;
    size_t n_inputs, n_outputs, n_axes;
    int64_t shape[MAX_AXES];
    struct chain chain;  // without memory
    struct step steps[];
};

static float number_of(int64_t bits) {
    const uint32_t low = (uint32_t)bits;
    float number;
    memcpy(&number, &low, sizeof number);
    return number;
}

_Static_assert(MAX_TENSORS + MAX_BLOCKS <= 32, "a bit for each place");

// The bit of a place in a set of them; 0: it is neither a tensor of this node nor a block.
static uint32_t bit(const struct node *node, int64_t place) {
    const int is_tensor = within(place, 0, (int64_t)(node->n_inputs + node->n_outputs));
    return is_tensor || within(place, MAX_TENSORS, MAX_TENSORS + MAX_BLOCKS) ? 1u << place : 0;
}

// Nothing is read before it is written, and all outputs are: memory of others is in no answer.
static int take_steps(struct node *node, const int64_t *from) {
    const uint32_t inputs = (1u << node->n_inputs) - 1;
    const uint32_t tensors = (1u << (node->n_inputs + node->n_outputs)) - 1;
    uint32_t written = inputs;
    for (int32_t number = 0; number < node->chain.n_steps; number++, from += OF_STEP) {
        if (!within(from[0], 0, N_OPERATORS)) return 0;
        const uint32_t to = bit(node, from[1]);
        if (!to || to & inputs || !(bit(node, from[2]) & written) || !(bit(node, from[3]) & written)) return 0;
        written |= to;
        node->steps[number] = (struct step){(int32_t)from[0], (int32_t)from[1], (int32_t)from[2],
                                            (int32_t)from[3], number_of(from[4]), number_of(from[5])};
    }
    return (written & tensors) == tensors;
}

// How many steps a program of `n` integers has; 0: it is none.
static size_t count_steps(const int64_t *from, size_t n) {
    if (n < HEAD || !within(from[0], 1, MAX_TENSORS) || !within(from[1], 1, MAX_TENSORS) ||
        from[0] + from[1] > MAX_TENSORS || !within(from[2], 0, MAX_AXES + 1) || !within(from[3], 1, INT32_MAX))
        return 0;
    const size_t n_steps = (size_t)from[3];
    const size_t before = HEAD + (size_t)from[2] + OF_TENSOR * (size_t)from[0];
    return n == before + OF_STEP * n_steps ? n_steps : 0;
}

// Fills `node` from a program whose steps were counted; 0: it is none.
static int take(struct node *node, const int64_t *from) {
    node->n_inputs = (size_t)from[0];
    node->n_outputs = (size_t)from[1];
    node->n_axes = (size_t)from[2];
    node->chain.n_steps = (int32_t)from[3];
    from += HEAD;
    node->chain.n_elements = 1;
    for (size_t axis = 0; axis < node->n_axes; axis++, from++) {
        if (!within(*from, 0, INT32_MAX)) return 0;
        node->shape[axis] = *from;
        if (__builtin_mul_overflow(node->chain.n_elements, (size_t)*from, &node->chain.n_elements)) return 0;
    }
    for (size_t i = 0; i < node->n_inputs; i++, from += OF_TENSOR) {
        if (!within(from[0], 0, INT64_MAX) || !within(from[1], from[0] > 0, from[0] + 1)) return 0;
        node->chain.tensors[i].plane = (size_t)from[0];
        node->chain.tensors[i].width = (size_t)from[1];
    }
    return take_steps(node, from);
}

static status *no_memory(table functions) {
    return CALL(functions, CREATE_STATUS, create_status)(FAIL, "no memory for a chain");
}

// Makes a node of the program `from`, `n` integers.
static status *create_node(table functions, const int64_t *from, size_t n, void **made) {
    const size_t n_steps = count_steps(from, n);
    if (!n_steps) return invalid(functions, "the program of a chain is none");
    struct node *node = calloc(1, sizeof *node + n_steps * sizeof *node->steps);
    if (!node) return no_memory(functions);
    if (!take(node, from)) {
        free(node);
        return invalid(functions, "the program of a chain is none");
    }
    node->functions = functions;
    node->chain.steps = node->steps;
    *made = node;
    return NULL;
}

static status *create(const struct custom_operator *self, table functions, const node_info *info,
                      void **made) {
    (void)self;
    size_t n = 0;
    TRY(CALL(functions, INTEGERS, integers)(info, PROGRAM_NAME, NULL, &n));
    int64_t *read = malloc((n + 1) * sizeof *read);  // of no integers, too
    if (!read) return no_memory(functions);
    status *failed = CALL(functions, INTEGERS, integers)(info, PROGRAM_NAME, read, &n);
    if (!failed) failed = create_node(functions, read, n, made);
    free(read);
    return failed;
}

// How many elements a chain reads of `tensor`.
static size_t needed(const struct chain *chain, const struct tensor *tensor) {
    if (!tensor->plane || !chain->n_elements) return chain->n_elements;
    return ((chain->n_elements - 1) / tensor->plane + 1) * tensor->width;
}

static status *count_elements(table functions, const value *of, size_t *found) {
    shape *shape;
    TRY(CALL(functions, SHAPE, shape_of)(of, &shape));
    status *failed = CALL(functions, N_ELEMENTS, n_elements)(shape, found);
    CALL(functions, RELEASE_SHAPE, release_shape)(shape);
    return failed;
}

static status *place(const struct node *node, run_context *context, struct chain *chain) {
    void *data;
    for (size_t i = 0; i < node->n_inputs; i++) {
        const value *found;
        size_t n;
        TRY(CALL(node->functions, INPUT, input)(context, i, &found));
        TRY(count_elements(node->functions, found, &n));
        if (n != needed(chain, &chain->tensors[i]))
            return invalid(node->functions, "an input of a chain is not as large as its program says");
        TRY(CALL(node->functions, TENSOR_DATA, tensor_data)((value *)found, &data));
        chain->tensors[i].data = data;
    }
    for (size_t i = 0; i < node->n_outputs; i++) {
        value *found;
        TRY(CALL(node->functions, OUTPUT, output)(context, i, node->shape, node->n_axes, &found));
        TRY(CALL(node->functions, TENSOR_DATA, tensor_data)(found, &data));
        chain->tensors[node->n_inputs + i].data = data;
    }
    return NULL;
}

static status *run(void *made, run_context *context) {
    const struct node *node = made;
    struct chain chain = node->chain;
    size_t n_inputs, n_outputs;
    TRY(CALL(node->functions, INPUT_COUNT, count)(context, &n_inputs));
    TRY(CALL(node->functions, OUTPUT_COUNT, count)(context, &n_outputs));
    if (n_inputs != node->n_inputs || n_outputs != node->n_outputs)
        return invalid(node->functions, "a chain has other inputs or outputs than its program");
    TRY(place(node, context, &chain));
    if (chain.n_elements < WORTH_SHARING) {
        compute(&chain, 0, chain.n_elements);
        return NULL;
    }
    const size_t n_parts = (chain.n_elements + CHAIN_PART - 1) / CHAIN_PART;
    return CALL(node->functions, PARALLEL_FOR, parallel_for)(context, elementwise_chain_part, n_parts, 0,
                                                             &chain);
}

static const char *name(const struct custom_operator *self) { return (void)self, CHAIN_NAME; }
static const char *provider(const struct custom_operator *self) { return (void)self, NULL; }
static int type(const struct custom_operator *self, size_t number) { return (void)self, (void)number, FLOAT; }
static int variadic(const struct custom_operator *self, size_t number) {
    return (void)self, (void)number, VARIADIC;
}
static size_t one_kind(const struct custom_operator *self) { return (void)self, 1; }
static int memory(const struct custom_operator *self, size_t number) { return (void)self, (void)number, 0; }
static int one(const struct custom_operator *self) { return (void)self, 1; }

static const struct custom_operator chain_operator = {
    .version = INTERFACE,
    .name = name,
    .provider = provider,
    .input_type = type,
    .input_count = one_kind,
    .output_type = type,
    .output_count = one_kind,
    .destroy = free,
    .input_characteristic = variadic,
    .output_characteristic = variadic,
    .input_memory = memory,
    .least_inputs = one,
    .inputs_alike = one,
    .least_outputs = one,
    .outputs_alike = one,
    .create = create,
    .compute = run,
    .first_version = one,
    .last_version = one,
};

static status *create_job(const struct custom_operator *self, table functions, const node_info *info,
                          void **made) {
    (void)self, (void)info;
    table *held = malloc(sizeof *held);
    if (!held) return CALL(functions, CREATE_STATUS, create_status)(FAIL, "no memory for a job");
    *held = functions;
    *made = held;
    return NULL;
}

static status *run_job(void *made, run_context *context) {
    const table functions = *(const table *)made;
    const struct job *job = elementwise_take_job();
    if (!job) return invalid(functions, "there is no job to do");
    return CALL(functions, PARALLEL_FOR, parallel_for)(context, job->part, job->n_parts, 0, job->argument);
}

static const char *job_name(const struct custom_operator *self) { return (void)self, JOB_NAME; }

static struct custom_operator job_operator, attention_operator;

// As a chain, but for what they are called, make and do.
static void describe_others(void) {
    attention_operator = attention_like(&chain_operator);
    job_operator = chain_operator;
    job_operator.name = job_name;
    job_operator.create = create_job;
    job_operator.compute = run_job;
}

// One for the process: sessions hold it, and it holds nothing of theirs. One thread at a time asks.
static status *the_domain(table functions, domain **found) {
    static domain *made;
    static int is_whole;
    if (!made) TRY(CALL(functions, CREATE_DOMAIN, create_domain)(DOMAIN_NAME, &made));
    if (!is_whole) {
        describe_others();
        TRY(CALL(functions, ADD_OPERATOR, add_operator)(made, &chain_operator));
        TRY(CALL(functions, ADD_OPERATOR, add_operator)(made, &job_operator));
        TRY(CALL(functions, ADD_OPERATOR, add_operator)(made, &attention_operator));
    }
    is_whole = 1;
    *found = made;
    return NULL;
}

// Called by ONNX Runtime for each session whose options name this library.
status *RegisterCustomOps(session_options *options, const struct base *base) {
    const table functions = base->interface(INTERFACE);
    if (!functions) {
        // The first version of the table has what is needed to say so.
        return invalid(base->interface(1), "no threads for custom operators before ONNX Runtime 1.17");
    }
    if (!kernels) return invalid(functions, "no kernels for this processor");
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    domain *layerstream = NULL;
    status *failed = the_domain(functions, &layerstream);
    pthread_mutex_unlock(&lock);
    return failed ? failed : CALL(functions, ADD_DOMAIN, add_domain)(options, layerstream);
}
