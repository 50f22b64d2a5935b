"""What ``layerstream app`` does: models of its file, ways to give them memory, what is printed."""
