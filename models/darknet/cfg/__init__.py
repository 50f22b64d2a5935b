"""Texts of cfg files to sections, and what a section may say."""
