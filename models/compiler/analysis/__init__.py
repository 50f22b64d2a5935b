"""Analysis of a graph before it is cut: values, aliases, regions, orders."""
