"""The runtime form of a model: what runs, on which memory, in which order; variants of parts of it."""
