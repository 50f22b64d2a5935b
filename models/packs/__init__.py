"""Packs on disk (docs/reference/pack-format.md): the manifest, its checks, and which pieces of it run."""
