"""The models of the service: found, opened, served by the threads of all models."""
