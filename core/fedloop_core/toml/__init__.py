"""TOML files that people write: read strictly, every mistake named with its file, line and key."""
