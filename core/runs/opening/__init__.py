"""A run on disk: found, checked against its inputs, read back, and what is left to send."""
