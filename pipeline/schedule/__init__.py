"""One sweep as data: its architecture, the order of its operations, their trace and its check."""
