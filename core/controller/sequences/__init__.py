"""Start, stop and restart as sequences of proven stages, also over kvctld's own death."""
