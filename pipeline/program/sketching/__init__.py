"""What regions would take, for many beginnings and numbers of rows at once."""
