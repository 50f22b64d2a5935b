"""Planning memory and executing: what to keep where, what to do when, and doing it."""
