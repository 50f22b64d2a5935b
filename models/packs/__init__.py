"""Packs on disk (docs/pack-format.md): the manifest, its checks, and which pieces of it run."""
