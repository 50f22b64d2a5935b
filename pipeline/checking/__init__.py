"""Whether a pack computes what the model that it was compiled from computes."""
