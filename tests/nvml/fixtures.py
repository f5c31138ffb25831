"""Fixtures of the stand-in NVML and of real processes that look like SGLang's.

A test module takes them with `pytest_plugins = ["tests.nvml.fixtures"]`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.nvml.build import build_standin
from tests.nvml.host import StandinHost
from tests.nvml.tree import Grove


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built library."""
    return build_standin(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def standin(standin_library: Path, tmp_path: Path) -> StandinHost:
    """A host without GPUs, until the test writes some."""
    host = StandinHost(standin_library, tmp_path / "nvml-state")
    host.write()
    return host


@pytest.fixture
def grove() -> Iterator[Grove]:
    """Plants real processes; whatever is left of them is ended after the test."""
    planted = Grove()
    try:
        yield planted
    finally:
        planted.clear()
