// Attention as an operator of ONNX Runtime.
#ifndef ELEMENTWISE_ATTENTION_OPERATOR_H
#define ELEMENTWISE_ATTENTION_OPERATOR_H

#include "onnxruntime.h"

// Returns `MultiHeadAttention`: as `like`, but for what it is called, reads, makes and does.
struct custom_operator attention_like(const struct custom_operator *like);

#endif
