"""Ultralytics' detectors, as its exporter writes them, batch norms not folded."""
