"""One budget: what models hold of it, and what requests do."""
