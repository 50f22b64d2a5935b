"""What a slot needs and may be planned as, before anything of it is opened."""
