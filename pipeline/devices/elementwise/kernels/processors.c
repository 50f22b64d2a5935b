// Chooses the build of the kernels when the library is loaded: the widest that the processor can run.
#include "processors.h"

#include <string.h>

struct processor {
    const char *name;
    kernel *const *kernels;
    const struct expansions *expansions;
    attention_part *attention;
    const struct integers *integers, *dot_products;
    int (*can_run)(void), (*has_dot_products)(void);
};

#if defined(__x86_64__)
extern kernel *const kernels_avx2[N_OPERATORS];
extern const struct expansions expansions_avx2;
extern attention_part attention_part_avx2;
extern const struct integers integers_avx2;
extern kernel *const kernels_avx512[N_OPERATORS];
extern const struct expansions expansions_avx512;
extern attention_part attention_part_avx512;
extern const struct integers integers_avx512, integers_avx512vnni;

static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("f16c");
}
static int has_vnni(void) { return __builtin_cpu_supports("avx512vnni"); }
static int never(void) { return 0; }

static const struct processor processors[] = {
    {"avx512", kernels_avx512, &expansions_avx512, attention_part_avx512, &integers_avx512, &integers_avx512vnni,
     has_avx512, has_vnni},
    {"avx2", kernels_avx2, &expansions_avx2, attention_part_avx2, &integers_avx2, NULL, has_avx2, never},
};
#elif defined(__aarch64__)
extern kernel *const kernels_neon[N_OPERATORS];
extern const struct expansions expansions_neon;
extern attention_part attention_part_neon;
extern const struct integers integers_neon;

static int always(void) { return 1; }
static int never(void) { return 0; }

static const struct processor processors[] = {
    {"neon", kernels_neon, &expansions_neon, attention_part_neon, &integers_neon, NULL, always, never},
};
#else
#error "no kernels for this processor"
#endif

kernel *const *kernels;
const struct expansions *expansions;
attention_part *attention_kernel;
const struct integers *integer_kernels;
static const char *chosen = "";

int elementwise_choose(const char *name) {
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++) {
        const struct processor *each = &processors[i];
        if ((!*name || !strcmp(name, each->name)) && each->can_run()) {
            kernels = each->kernels;
            expansions = each->expansions;
            attention_kernel = each->attention;
            integer_kernels = each->has_dot_products() ? each->dot_products : each->integers;
            chosen = each->name;
            return 1;
        }
    }
    return 0;
}

void integers_use_dot_products(int wanted) {
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++) {
        const struct processor *each = &processors[i];
        if (!strcmp(chosen, each->name))
            integer_kernels = wanted && each->has_dot_products() ? each->dot_products : each->integers;
    }
}

const char *elementwise_processor(void) { return chosen; }

const char *elementwise_sources(void) { return ELEMENTWISE_SOURCES; }

__attribute__((constructor)) static void choose_first(void) { (void)elementwise_choose(""); }
