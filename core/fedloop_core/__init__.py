"""What all sides of fedloop share: the task file, the feature schema, errors, keys and envelopes, the artifact format."""
