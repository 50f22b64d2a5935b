"""The schedule on a virtual clock: delay and bound, from how long operations take."""
