"""Regions on tiles: which boxes are made, what is kept between tiles, what lies where, what happens."""
