"""From operators to calls of C functions, one file a family of operators."""
