// What of ONNX Runtime's C interface the custom operator needs.
//
// Its interface is a table of functions that only grows: a function keeps its number in every later version.
// So numbers and signatures are named here, and no header is needed. `interface(17)` is NULL in an ONNX
// Runtime that is older than version 17 of the table, the first with PARALLEL_FOR.
#ifndef ELEMENTWISE_ONNXRUNTIME_H
#define ELEMENTWISE_ONNXRUNTIME_H

#include <stddef.h>
#include <stdint.h>

enum { INTERFACE = 17 };

// Numbers in the table. A function that can fail returns NULL where it did not, or a status that
// whoever gets it frees or hands on.
enum function {
    CREATE_STATUS = 0,
    CREATE_DOMAIN = 26,
    ADD_OPERATOR = 27,
    ADD_DOMAIN = 28,
    TENSOR_DATA = 51,
    N_LENGTHS = 61,
    LENGTHS = 62,
    N_ELEMENTS = 64,
    SHAPE = 65,
    NUMBER = 85,
    INTEGER = 86,
    INPUT_COUNT = 88,
    OUTPUT_COUNT = 89,
    INPUT = 90,
    OUTPUT = 91,
    RELEASE_SHAPE = 99,
    INTEGERS = 163,
    PARALLEL_FOR = 274,
};

typedef struct status status;
typedef struct session_options session_options;
typedef struct domain domain;
typedef struct node_info node_info;
typedef struct run_context run_context;
typedef struct value value;
typedef struct shape shape;
typedef void *const *table;
struct custom_operator;

struct base {
    table (*interface)(uint32_t version);
    const char *(*version)(void);
};

enum status_code { FAIL = 1, INVALID_ARGUMENT = 2 };
enum element_type { FLOAT = 1 };
enum characteristic { REQUIRED = 0, OPTIONAL = 1, VARIADIC = 2 };

typedef status *create_status(int code, const char *message);
typedef status *create_domain(const char *name, domain **made);
typedef status *add_operator(domain *to, const struct custom_operator *added);
typedef status *add_domain(session_options *to, domain *added);
typedef status *count(const run_context *of, size_t *found);
typedef status *input(const run_context *of, size_t number, const value **found);
typedef status *output(run_context *of, size_t number, const int64_t *shape, size_t n_axes, value **found);
typedef status *tensor_data(value *of, void **found);
typedef status *shape_of(const value *of, shape **made);
typedef status *n_elements(const shape *of, size_t *found);
typedef status *count_lengths(const shape *of, size_t *found);
typedef status *lengths_of(const shape *of, int64_t *found, size_t n);
typedef void release_shape(shape *made);
typedef status *number_attribute(const node_info *of, const char *name, float *found);
typedef status *integer_attribute(const node_info *of, const char *name, int64_t *found);
// `found` NULL: only counts.
typedef status *integers(const node_info *of, const char *name, int64_t *found, size_t *n_found);
typedef status *parallel_for(const run_context *in, void (*part)(void *, size_t), size_t n_parts,
                             size_t n_batches, void *argument);

// An operator as ONNX Runtime calls it, in its order. What is behind `last_version` is newer than INTERFACE.
struct custom_operator {
    uint32_t version;
    void *(*create_old)(const struct custom_operator *, table, const node_info *);
    const char *(*name)(const struct custom_operator *);
    const char *(*provider)(const struct custom_operator *);
    int (*input_type)(const struct custom_operator *, size_t);
    size_t (*input_count)(const struct custom_operator *);
    int (*output_type)(const struct custom_operator *, size_t);
    size_t (*output_count)(const struct custom_operator *);
    void (*compute_old)(void *, run_context *);
    void (*destroy)(void *);
    int (*input_characteristic)(const struct custom_operator *, size_t);
    int (*output_characteristic)(const struct custom_operator *, size_t);
    int (*input_memory)(const struct custom_operator *, size_t);
    int (*least_inputs)(const struct custom_operator *);
    int (*inputs_alike)(const struct custom_operator *);
    int (*least_outputs)(const struct custom_operator *);
    int (*outputs_alike)(const struct custom_operator *);
    status *(*create)(const struct custom_operator *, table, const node_info *, void **);
    status *(*compute)(void *, run_context *);
    status *(*infer_shape)(const struct custom_operator *, void *);
    int (*first_version)(const struct custom_operator *);
    int (*last_version)(const struct custom_operator *);
    void *newer[4];
};

#define CALL(functions, number, type) ((type *)(functions)[number])
#define TRY(call)                   \
    do {                            \
        status *failed = (call);    \
        if (failed) return failed;  \
    } while (0)

static inline status *invalid(table functions, const char *message) {
    return CALL(functions, CREATE_STATUS, create_status)(INVALID_ARGUMENT, message);
}

static inline int within(int64_t number, int64_t least, int64_t end) { return number >= least && number < end; }

#endif
