"""A controller over a fake host, on a manual clock."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.rig import Rig, rig_on


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_on(tmp_path) as made:
        yield made
