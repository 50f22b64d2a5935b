"""Where a process that is measured runs, and what the kernel says of it."""
