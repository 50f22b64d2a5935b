"""What a manifest is made of (docs/pack-format.md): small records, by what they say."""
