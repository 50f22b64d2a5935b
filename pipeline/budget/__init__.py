"""The one memory of all models: what each holds, and the plans with which they share it."""
