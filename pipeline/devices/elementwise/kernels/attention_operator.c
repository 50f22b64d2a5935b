// Attention as an operator: ONNX Runtime's `MultiHeadAttention`, as far as it has these inputs and attributes.
//
// Queries, keys and values are [images, tokens, heads * head]; two inputs are left out; a bias [images or 1,
// heads or 1, queries, keys] may be. It makes [images, queries, heads * value_head].
#include "attention_operator.h"

#include <stdlib.h>

#include "interface.h"
#include "processors.h"

enum { QUERIES, KEYS, VALUES, BIAS = 5, N_INPUTS, MAX_LENGTHS = 4, TOKEN_LENGTHS = 3 };

struct attention_node {
    table functions;
    int64_t n_heads;
    float scale;
};

static status *no_memory(table functions) {
    return CALL(functions, CREATE_STATUS, create_status)(FAIL, "no memory for an attention");
}

static status *create_attention(const struct custom_operator *self, table functions, const node_info *info,
                                void **made) {
    (void)self;
    int64_t n_heads;
    float scale;
    TRY(CALL(functions, INTEGER, integer_attribute)(info, "num_heads", &n_heads));
    TRY(CALL(functions, NUMBER, number_attribute)(info, "scale", &scale));
    if (!within(n_heads, 1, INT32_MAX)) return invalid(functions, "attention has no heads");
    struct attention_node *node = malloc(sizeof *node);
    if (!node) return no_memory(functions);
    *node = (struct attention_node){functions, n_heads, scale};
    *made = node;
    return NULL;
}

struct tensor_read {
    const float *data;  // NULL: it is left out
    int64_t lengths[MAX_LENGTHS];
    size_t n_lengths;
};

static status *read_lengths(table functions, const value *of, struct tensor_read *to) {
    shape *shape;
    TRY(CALL(functions, SHAPE, shape_of)(of, &shape));
    status *failed = CALL(functions, N_LENGTHS, count_lengths)(shape, &to->n_lengths);
    if (!failed && to->n_lengths <= MAX_LENGTHS)
        failed = CALL(functions, LENGTHS, lengths_of)(shape, to->lengths, to->n_lengths);
    CALL(functions, RELEASE_SHAPE, release_shape)(shape);
    return failed;
}

static status *read_tensor(table functions, run_context *context, size_t number, struct tensor_read *to) {
    const value *found = NULL;
    void *data = NULL;
    *to = (struct tensor_read){0};
    TRY(CALL(functions, INPUT, input)(context, number, &found));
    if (!found) return NULL;
    TRY(read_lengths(functions, found, to));
    TRY(CALL(functions, TENSOR_DATA, tensor_data)((value *)found, &data));
    to->data = data;
    return NULL;
}

// Fills `to` where shapes agree; 0: they do not.
static int take_shapes(const struct attention_node *node, const struct tensor_read *inputs, struct attention *to) {
    const struct tensor_read *queries = &inputs[QUERIES], *keys = &inputs[KEYS], *values = &inputs[VALUES];
    for (size_t i = QUERIES; i <= VALUES; i++) {
        if (!inputs[i].data || inputs[i].n_lengths != TOKEN_LENGTHS) return 0;
        if (inputs[i].lengths[0] != queries->lengths[0] || inputs[i].lengths[2] % node->n_heads) return 0;
        if (!within(inputs[i].lengths[2] / node->n_heads, 1, MAX_HEAD + 1)) return 0;
    }
    if (queries->lengths[2] != keys->lengths[2] || keys->lengths[1] != values->lengths[1]) return 0;
    to->n_images = (size_t)queries->lengths[0];
    to->n_queries = (size_t)queries->lengths[1];
    to->n_keys = (size_t)keys->lengths[1];
    to->n_heads = (size_t)node->n_heads;
    to->head = (size_t)(queries->lengths[2] / node->n_heads);
    to->value_head = (size_t)(values->lengths[2] / node->n_heads);
    to->scale = node->scale;
    const struct tensor_read *bias = &inputs[BIAS];
    if (!bias->data) return 1;
    const int64_t *lengths = bias->lengths;
    if (bias->n_lengths != MAX_LENGTHS || lengths[2] != queries->lengths[1] || lengths[3] != keys->lengths[1])
        return 0;
    if ((lengths[0] != 1 && lengths[0] != queries->lengths[0]) || (lengths[1] != 1 && lengths[1] != node->n_heads))
        return 0;
    to->query_step = to->n_keys;
    to->head_step = lengths[1] == 1 ? 0 : to->n_queries * to->n_keys;
    to->image_step = lengths[0] == 1 ? 0 : (size_t)lengths[1] * to->n_queries * to->n_keys;
    return 1;
}

static status *run_attention(void *made, run_context *context) {
    const struct attention_node *node = made;
    struct tensor_read inputs[N_INPUTS] = {0};
    size_t n_inputs;
    TRY(CALL(node->functions, INPUT_COUNT, count)(context, &n_inputs));
    for (size_t i = 0; i < n_inputs && i < N_INPUTS; i++)
        TRY(read_tensor(node->functions, context, i, &inputs[i]));
    struct attention attention = {0};
    if (!take_shapes(node, inputs, &attention))
        return invalid(node->functions, "queries, keys, values and bias of an attention do not fit");
    const int64_t lengths[TOKEN_LENGTHS] = {inputs[QUERIES].lengths[0], inputs[QUERIES].lengths[1],
                                            inputs[VALUES].lengths[2]};
    value *result;
    void *data;
    TRY(CALL(node->functions, OUTPUT, output)(context, 0, lengths, TOKEN_LENGTHS, &result));
    TRY(CALL(node->functions, TENSOR_DATA, tensor_data)(result, &data));
    attention.queries = inputs[QUERIES].data;
    attention.keys = inputs[KEYS].data;
    attention.values = inputs[VALUES].data;
    attention.bias = inputs[BIAS].data;
    attention.made = data;
    const size_t n_parts = attention_parts(&attention);
    if (!n_parts) return NULL;
    TRY(CALL(node->functions, PARALLEL_FOR, parallel_for)(context, attention_kernel, n_parts, 0, &attention));
    return attention.failed ? no_memory(node->functions) : NULL;
}

static const char *attention_name(const struct custom_operator *self) { return (void)self, ATTENTION_NAME; }
static size_t attention_inputs(const struct custom_operator *self) { return (void)self, N_INPUTS; }
static int attention_characteristic(const struct custom_operator *self, size_t number) {
    return (void)self, number <= VALUES ? REQUIRED : OPTIONAL;
}
static int required(const struct custom_operator *self, size_t number) {
    return (void)self, (void)number, REQUIRED;
}

struct custom_operator attention_like(const struct custom_operator *like) {
    struct custom_operator result = *like;
    result.name = attention_name;
    result.input_count = attention_inputs;
    result.input_characteristic = attention_characteristic;
    result.output_characteristic = required;
    result.create = create_attention;
    result.compute = run_attention;
    return result;
}
