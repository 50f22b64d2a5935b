"""The evaluation of seed 003 as tables and pages."""
