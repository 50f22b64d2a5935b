"""The page at /: what is served and in how much memory, live; load, unload, look, try an image."""
