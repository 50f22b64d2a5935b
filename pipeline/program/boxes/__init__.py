"""Regions whose phases make boxes of rows and columns: boxes made and kept, their places, the steps."""
