"""Steps that need less memory as one: on rows of an image as they come, on some channels at a time."""
