"""What plans hold in reality: offsets of arenas, and every plan of a frontier."""
