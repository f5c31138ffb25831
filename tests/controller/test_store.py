"""The store, the event feed and the remembered state."""

import asyncio
from pathlib import Path

import pytest

from kvctl.core.clock import ManualClock, settle
from kvctl.core.controller.state import RunRecord, ServerRecord, StateFile
from kvctl.core.controller.store import EventFeed, Store
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.snapshot import Snapshot


def snapshot(at: float) -> Snapshot:
    return Snapshot(at, at, "gpu-07", "0")


async def test_a_slow_subscriber_gets_the_newest_snapshot_not_every_one() -> None:
    store = Store(snapshot(0))
    seen: list[float] = []

    async def read() -> None:
        async for shot in store.subscribe():
            seen.append(shot.at)
            if shot.at == 3:
                return
            await asyncio.sleep(0)

    task = asyncio.create_task(read())
    await settle()
    for at in (1, 2, 3):
        store.latest = snapshot(at)
    await store.publish(snapshot(3))
    await task
    assert seen == [0, 3]


def test_events_survive_kvctld_and_a_torn_audit_line(tmp_path: Path) -> None:
    clock = ManualClock()
    feed = EventFeed(clock, tmp_path / "audit.jsonl")
    feed.emit("ready", "pool 159,277", "c1")
    feed.emit("killed", "pid 41822 \x1b[31m gone\u2028here")
    with (tmp_path / "audit.jsonl").open("ab") as handle:
        handle.write(b'{"wall": 1, "ki')
    again = EventFeed(clock, tmp_path / "audit.jsonl")
    again.load_recent()
    assert [(event.kind, event.command) for event in again.recent] == [
        ("ready", "c1"),
        ("killed", None),
    ]


def test_an_audit_log_that_cannot_be_written_never_stops_an_event(tmp_path: Path) -> None:
    feed = EventFeed(ManualClock(), tmp_path / "missing" / "audit.jsonl")
    assert feed.emit("ready", "x").text == "x"
    assert len(feed.recent) == 1


def test_remembered_state_round_trips_and_is_private(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "deep" / "state.json")
    remembered = file.load()
    remembered.servers.append(ServerRecord("main", "http://x", True, 7, 9, gpu_uuids=("GPU-1",)))
    remembered.run = RunRecord("/r.toml")
    file.save(remembered)
    assert file.load() == remembered
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_an_unreadable_state_file_is_left_as_it_is_and_named(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("{torn")
    with pytest.raises(KvctlError, match=r"state\.json cannot be read"):
        StateFile(path).load()
    assert path.read_text() == "{torn"
