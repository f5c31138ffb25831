"""Inputs, scheduling over partitions, request slots, the journal, export."""
