"""The process and what supervises it: the service manager, the control group, the log."""
