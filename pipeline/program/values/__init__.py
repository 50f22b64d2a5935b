"""Values between pieces: which lie in the memory of others, and who reads what is there."""
