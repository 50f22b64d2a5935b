"""The times of a schedule: delay and bound, from how long operations take."""
