"""One sweep through a network: which operations start when, for real."""
