"""What `up` does before it serves, packs of what it was given, and after: how to ask each model."""
