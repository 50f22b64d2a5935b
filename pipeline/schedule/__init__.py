"""One sweep as data: its architecture, what waits for what, what happened, and who judges that."""
