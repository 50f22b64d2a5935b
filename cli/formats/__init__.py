"""Packs as what other tools take: C, and files of SDF3."""
