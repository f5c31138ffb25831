"""A controller over a fake host, and run drivers over a fake server, on a manual clock."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.bench import Bench
from tests.fakes.rig import Rig, rig_on


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_on(tmp_path) as made:
        yield made


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for driver in list(made.open_ones):
        await made.close(driver, keep=False)
