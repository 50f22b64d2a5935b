"""What was measured of a pack on a machine, kept beside it, and what that says of its plans."""
