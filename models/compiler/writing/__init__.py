"""The pack written: records of the manifest, recipes, files."""
