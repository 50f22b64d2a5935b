"""What C and Python share, as tables: kernels, limits, structures, functions. Headers of C are of them."""
