"""What a manifest is made of (docs/reference/pack-manifest.md): small records, by what they say."""
