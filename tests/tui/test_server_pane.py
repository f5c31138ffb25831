"""Pane 4: the line that says since when the server serves."""

from dataclasses import replace

import pytest

from kvctl.core.domain.servers.server import Server, ServerState
from kvctl.tui.present.server import body
from kvctl.tui.present.view import View
from tests.tui import mission

URL = mission.SERVER.url


def said(server: Server) -> list[str]:
    lines = body(replace(mission.STEADY, servers=(server,)), View(), 60, 12)
    return [" ".join(line.text.split()) for line in lines]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, f"ready 10:11:58 after 10 m 21 s {URL}"),
        ({"ready_after_s": None}, f"ready 10:11:58 {URL}"),
        ({"ready_wall": None, "ready_after_s": None}, f"serves {URL}"),
        ({"ready_wall": None, "state": ServerState.STARTING, "state_reason": "weights 3/8"},
         "weights 3/8"),
    ],
)  # fmt: skip
def test_only_what_is_known_of_readiness_is_shown(change: dict[str, object], line: str) -> None:
    assert line in said(replace(mission.SERVER, **change))  # type: ignore[arg-type]
