"""Accepted answers as JSON lines for training: chosen, ordered, shaped, written whole."""
