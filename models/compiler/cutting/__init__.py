"""The graph cut into pieces whose weights stream, and their weights laid out."""
