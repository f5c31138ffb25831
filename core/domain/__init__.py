"""Frozen types and pure functions: no I/O, no clock, standard library only."""
