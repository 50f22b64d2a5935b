"""What a pack answers on a data set, beside what is known of it."""
