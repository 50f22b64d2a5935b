"""Our engine's plans for an application: ours, and the papers' as plans of our engine."""
