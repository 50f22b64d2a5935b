"""Reading for all models: whose read comes next, and the threads that read."""
