"""CNNs as the papers write them down: layers, windows and edges, without weights."""
