"""The repository of a service while it changes."""
