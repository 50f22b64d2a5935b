"""Who reads a range of a file: real files, and the shipped fakes, behind one interface."""
