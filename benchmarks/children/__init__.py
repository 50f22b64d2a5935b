"""Programs that are measured in a process of their own."""
