"""The compiler's work as a list of passes.

What one is: record.py. All of them, in their order: table.py. How they run: run.py.
"""
