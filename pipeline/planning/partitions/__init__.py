"""Networks in partitions that compute at once: where to cut, and what all of it takes."""
