"""What every test shares: property tests draw the same examples on every machine, every time."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
