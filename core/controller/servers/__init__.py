"""Servers under watch: their sources, their records, freezing and the live cap."""
