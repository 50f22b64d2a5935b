"""One sweep as data: its architecture, what waits for what, what happened, and whether that was right."""
