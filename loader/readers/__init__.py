"""Who reads a range of a file: real files, and the shipped fakes. Every OS call stays behind one interface."""
