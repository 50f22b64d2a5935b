"""Which requests run next, of all models: who is let in, in which order, and in whose sweep."""
