"""The network of a pack in standard operators, on plain tensors."""
