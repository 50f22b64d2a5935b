"""Prometheus metrics: counted by requests, read when scraped."""
