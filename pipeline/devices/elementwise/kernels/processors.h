// Which build of the kernels this processor can run.
#ifndef ELEMENTWISE_PROCESSORS_H
#define ELEMENTWISE_PROCESSORS_H

#include "attention.h"
#include "chain.h"
#include "expansion.h"
#include "integers/integers.h"

// Those in use. NULL: this processor can run none.
extern kernel *const *kernels;
extern const struct expansions *expansions;
extern attention_part *attention_kernel;
extern const struct integers *integer_kernels;

#endif
