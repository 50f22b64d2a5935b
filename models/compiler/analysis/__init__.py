"""What the compiler knows of a graph before it cuts it: values, aliases, regions, orders."""
