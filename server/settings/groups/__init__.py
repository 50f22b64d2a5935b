"""The settings, a file for each group in which the table of settings shows them."""
