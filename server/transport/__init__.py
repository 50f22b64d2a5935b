"""Connections: which ones find a place, how long one may stay silent, and how much it may hold."""
