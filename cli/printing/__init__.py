"""How results look in a terminal: JSON, tables, sentences, progress."""
