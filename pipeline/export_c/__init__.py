"""A pack as C with a static arena, for machines without room for a server (docs/how-to/export-c.md)."""
