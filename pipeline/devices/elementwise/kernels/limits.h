// A limit or a size by its name (limits.c).
#ifndef ELEMENTWISE_LIMITS_H
#define ELEMENTWISE_LIMITS_H

#include <stddef.h>

struct limit {
    const char *name;
    size_t value;
};

const struct limit *elementwise_limits(void);

#endif
