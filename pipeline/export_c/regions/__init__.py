"""Steps that need less memory together: rows of the caller's image as they are needed, bottlenecks in groups."""
