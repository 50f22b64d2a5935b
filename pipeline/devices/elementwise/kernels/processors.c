// Chooses the build of the kernels when the library is loaded: the widest that the processor can run.
#include "processors.h"

#include <string.h>

struct processor {
    const char *name;
    kernel *const *kernels;
    const struct expansions *expansions;
    int (*can_run)(void);
};

#if defined(__x86_64__)
extern kernel *const kernels_avx2[N_OPERATORS];
extern const struct expansions expansions_avx2;
extern kernel *const kernels_avx512[N_OPERATORS];
extern const struct expansions expansions_avx512;

static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("f16c");
}

static const struct processor processors[] = {
    {"avx512", kernels_avx512, &expansions_avx512, has_avx512},
    {"avx2", kernels_avx2, &expansions_avx2, has_avx2},
};
#elif defined(__aarch64__)
extern kernel *const kernels_neon[N_OPERATORS];
extern const struct expansions expansions_neon;

static int always(void) { return 1; }

static const struct processor processors[] = {{"neon", kernels_neon, &expansions_neon, always}};
#else
#error "no kernels for this processor"
#endif

kernel *const *kernels;
const struct expansions *expansions;
static const char *chosen = "";

// Takes the kernels called `name`, or with "" the widest. Returns whether there are any; no chain may run.
int elementwise_choose(const char *name) {
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++) {
        const struct processor *each = &processors[i];
        if ((!*name || !strcmp(name, each->name)) && each->can_run()) {
            kernels = each->kernels;
            expansions = each->expansions;
            chosen = each->name;
            return 1;
        }
    }
    return 0;
}

// What the kernels in use are called; "" where the processor can run none.
const char *elementwise_processor(void) { return chosen; }

// What they were made of (tools/elementwise.py).
const char *elementwise_sources(void) { return ELEMENTWISE_SOURCES; }

__attribute__((constructor)) static void choose_first(void) { (void)elementwise_choose(""); }
