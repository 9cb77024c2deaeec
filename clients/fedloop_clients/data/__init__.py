"""A site's rows by block, the gate before them, and their fingerprint."""
