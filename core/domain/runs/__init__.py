"""A run: its file, its partitions, the outcome of an answer, progress and ETA."""
