// Quantised layers whose channels lie last, in little memory: convolutions, and bottlenecks of three of them.
//
// Bits are those of ONNX Runtime: sums are exact, and each is rounded once, half to even. Inside, bytes are
// unsigned: FLIP turns signed ones.
#ifndef INTEGERS_H
#define INTEGERS_H

#include "../interface.h"

struct integers {
    // Chooses groups and rows of a task for memory of about `most` bytes, and says what it takes.
    size_t (*fit)(struct task *task, size_t most);
    void (*part)(void *task, size_t number);
    void (*average)(const struct average *average);
};

#endif
