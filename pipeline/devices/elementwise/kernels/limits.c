// What Python has to agree on: limits by their names, and the sizes of structures that both sides have.
//
// library.py compares its own when it loads the library, pipeline/devices/integers the others.
#include "limits.h"

#include "chain.h"
#include "expansion.h"
#include "integers/integers.h"

#define LIMIT(name) {#name, name}
#define SIZE(type) {#type, sizeof(type)}

static const struct limit limits[] = {
    LIMIT(N_OPERATORS),
    LIMIT(MOST_TENSORS),
    LIMIT(MOST_BLOCKS),
    LIMIT(MOST_AXES),
    LIMIT(WORTH_SHARING),
    LIMIT(N_ENCODINGS),
    LIMIT(N_PLANES),
    LIMIT(BLOCK_NUMBERS),
    LIMIT(DICTIONARY_BYTES),
    LIMIT(MOST_BITS),
    LIMIT(MOST_LAYERS),
    LIMIT(MOST_JOINED),
    SIZE(struct tensor),
    SIZE(struct step),
    SIZE(struct chain),
    SIZE(struct stretch),
    SIZE(struct task),
    SIZE(struct average),
    {NULL, 0},
};

// All of them; the last one has no name.
const struct limit *elementwise_limits(void) { return limits; }
