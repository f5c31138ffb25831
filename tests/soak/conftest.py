"""Fixtures of the soaks that need the real engine."""

from tests.engine.conftest import installed_engine

__all__ = ["installed_engine"]
