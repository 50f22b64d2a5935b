"""Who may use the server, once keys are asked for: the keys, their file, and the guard of every request."""
