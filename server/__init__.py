"""The service: HTTP, the budget over all models, metrics, settings, command line."""
