"""Which requests run next, of all models: which are let in, in which order, and in which sweeps."""
