"""From the output of a network that segments to a mask over the photograph."""
