"""Rows of a run's inputs: files of any accepted format, found again by their places, as prompts."""
