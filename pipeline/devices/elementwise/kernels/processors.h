// Which build of the kernels this processor can run.
#ifndef ELEMENTWISE_PROCESSORS_H
#define ELEMENTWISE_PROCESSORS_H

#include "chain.h"

// Those in use. NULL: this processor can run none.
extern kernel *const *kernels;

#endif
