"""Networks of floats as networks of small integers, calibrated on pictures."""
