"""One request and its client: its place in line, its body, its picture, its time."""
