"""Connections: who may open one, how long it may stay silent, and what one may hold."""
