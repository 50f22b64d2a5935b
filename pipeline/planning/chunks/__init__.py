"""Which chunks of weights kernels take, where it is not the same in all of a network."""
