"""The process and who looks after it: the service manager, the control group, the log."""
