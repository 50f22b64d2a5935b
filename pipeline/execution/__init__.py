"""A model's memory, and sweeps over it."""
