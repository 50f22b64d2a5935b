// Infinity, for which the compiler at run time has no name of its own.
#pragma once

#define POSITIVE_INFINITY (1.0f / 0.0f)
