"""Packs that come, change and go while the service runs: seen, and taken when they are whole."""
