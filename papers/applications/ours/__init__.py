"""Our engine's plans for an application."""
