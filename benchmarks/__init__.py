"""Measurements against peers; run with ``make bench`` from a checkout."""
