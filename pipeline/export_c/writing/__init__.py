"""The texts: names, kernels that are used, weights, source and header; and the folder that holds them."""
