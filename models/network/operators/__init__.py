"""What nodes compute, by families, a record for each kind; ``reading`` has all of them.

A process that opens packs needs one family alone, so nothing is imported here: all of them take 0.7 MB of a
process.
"""
