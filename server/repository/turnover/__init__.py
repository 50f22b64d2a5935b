"""Models that give way: to their next pack, or to another model until they are asked again."""
