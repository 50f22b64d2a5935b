"""Regions whose phases make boxes of rows and columns: what is made, kept, lies where, happens."""
