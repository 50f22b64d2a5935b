"""Deterministic simulation of the whole service: threads, time, disk and network come from one seed."""
