"""A pack as C with a static arena, for machines that have no room for a server (docs/export-c.md)."""
