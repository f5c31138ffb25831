"""The table of commands and the command boundary."""

import asyncio
import dataclasses
import threading

import pytest
from tests.fakes.rig import Rig

from kvctl.core.controller import commands as c
from kvctl.core.controller.controller import Controller
from kvctl.core.domain.errors import KvctlError


async def test_every_command_has_exactly_one_route(rig: Rig) -> None:
    assert set(rig.now.routes) == set(c.COMMANDS.values())
    assert len(set(c.COMMANDS.values())) == len(c.COMMANDS)


def test_every_command_is_frozen_data_with_a_docstring_of_its_own() -> None:
    for command in c.COMMANDS.values():
        # A dataclass without one gets its signature for a docstring.
        assert command.__doc__ and not command.__doc__.startswith(f"{command.__name__}(")
        assert dataclasses.is_dataclass(command)
        assert vars(command)["__dataclass_params__"].frozen


async def test_an_unexpected_exception_becomes_one_line_and_the_controller_goes_on(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    started = await rig.serving()
    started.server.failing["loads"] = ZeroDivisionError("first line\nsecond line")
    outcome = await rig.submit(c.RefreshNow())
    started.server.failing.clear()
    assert outcome.exit_status == 1
    assert outcome.message == (
        "unexpected ZeroDivisionError: first line second line (traceback in kvctld's log)"
    )
    assert rig.events("failed") == [outcome.message]
    assert "Traceback" in capsys.readouterr().err
    assert (await rig.submit(c.RefreshNow())).is_done


async def test_refresh_reads_every_source_now(rig: Rig) -> None:
    server = rig.remote("http://far:1", others=3)
    await rig.submit(c.AdoptServer("http://far:1"))
    server.others = 7
    reads = rig.gpus.reads
    outcome = await rig.submit(c.RefreshNow())
    assert outcome.is_done and rig.gpus.reads == reads + 1
    assert rig.server("port-1").decode.running.value == 7


async def test_a_driver_that_hangs_freezes_nothing_and_is_told(rig: Rig) -> None:
    rig.clock.waits_for_gpus = False
    rig.gpus.hangs = threading.Event()
    await rig.advance(30)
    shot = rig.shot()
    assert shot.gpus.problem and "the driver has not answered for 10 s" in shot.gpus.problem
    assert [d.uuid for d in shot.gpus.devices] == ["GPU-0", "GPU-1"]
    assert rig.is_running
    await rig.advance(120)
    stuck = [t for t in threading.enumerate() if t.name == "gpu-read"]
    assert len(stuck) <= 2, "every reading that hangs costs a thread"
    rig.gpus.hangs.set()
    rig.gpus.hangs, rig.clock.waits_for_gpus = None, True
    await rig.advance(15)
    assert rig.shot().gpus.problem is None


async def test_a_source_that_breaks_ends_nothing_and_is_told(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of an adapter that nobody foresaw must not take the run with it."""
    started = await rig.serving()
    kept, rig.gpus.total_bytes = rig.gpus.total_bytes, None  # type: ignore[assignment]
    rig.gpus.held[(0, started.launched.identity)] = "many"  # type: ignore[assignment]
    started.server.failing["loads"] = IndexError("odd\nanswer")
    await rig.advance(30)
    shot = rig.shot()
    assert shot.gpus.problem and "TypeError" in shot.gpus.problem
    assert "broken: IndexError: odd answer" in rig.server().state_reason
    assert rig.is_running and "Traceback" in capsys.readouterr().err
    del rig.gpus.held[(0, started.launched.identity)]
    rig.gpus.total_bytes = kept
    started.server.failing.clear()
    await rig.advance(30)
    assert rig.shot().gpus.problem is None and rig.server().state.value == "idle"


async def test_stop_daemon_says_that_servers_go_on(rig: Rig) -> None:
    started = await rig.serving()
    outcome = await rig.submit(c.StopDaemon())
    assert outcome.is_done and "servers go on" in outcome.message
    assert rig.now.is_leaving.is_set()
    assert started.main.lives and rig.processes.sent == []


async def test_subscribers_get_the_picture_at_once_and_then_changes(rig: Rig) -> None:
    seen: list[str | None] = []

    async def read() -> None:
        async for shot in rig.now.subscribe():
            seen.append(shot.busy_command)
            if len(seen) > 1 and shot.busy_command is None and "start of small" in seen:
                return

    reader = asyncio.create_task(read())
    await rig.submit(c.StartServer("small"))
    await rig.clock.until(reader.done, 10)
    assert seen[0] is None and "start of small" in seen and seen[-1] is None


async def test_every_event_of_a_command_names_the_command(rig: Rig) -> None:
    await rig.submit(c.StartServer("small"))
    ready = rig.event("ready")
    assert ready.command is not None
    await rig.submit(c.StopServer())
    assert rig.event("stopped").command not in (None, ready.command)


async def test_an_unreadable_state_file_stops_kvctld_in_one_line_and_stays(rig: Rig) -> None:
    await rig.end()
    file = rig.state_folder / "state.json"
    file.write_text("{torn")
    with pytest.raises(KvctlError, match=r"state\.json cannot be read .*move it away"):
        Controller(rig.host())
    assert file.read_text() == "{torn"
    file.unlink()
    file.mkdir()
    with pytest.raises(KvctlError, match=r"state\.json cannot be read .*move it away"):
        Controller(rig.host())
    file.rmdir()
    await rig.begin()


async def test_a_state_folder_that_cannot_be_written_is_told_and_stops_nothing(rig: Rig) -> None:
    blocked = rig.state_folder / "state.tmp"
    blocked.mkdir()
    outcome = await rig.submit(c.StartServer("small"))
    assert outcome.is_done
    assert any("state.json cannot be written" in text for text in rig.events("state"))
    blocked.rmdir()


async def test_an_audit_log_that_cannot_be_used_stops_nothing(rig: Rig) -> None:
    await rig.end()
    file = rig.state_folder / "audit.jsonl"
    file.unlink(missing_ok=True)
    file.mkdir()
    await rig.begin()
    assert (await rig.submit(c.StartServer("small"))).is_done
    assert rig.events("ready")


async def test_a_ledger_that_cannot_be_written_is_told_and_stops_nothing(rig: Rig) -> None:
    (rig.state_folder / "launches.jsonl").mkdir()
    assert (await rig.submit(c.StartServer("small"))).is_done
    assert any("ledger" in text for text in rig.events("ledger"))
    assert (await rig.submit(c.StopServer())).is_done


async def test_a_broken_name_among_the_presets_does_not_stop_kvctld(rig: Rig) -> None:
    (rig.folder / "presets" / "gone.toml").symlink_to(rig.folder / "nowhere")
    await rig.advance(10)
    await rig.again()
    await rig.advance(10)
    assert rig.is_running
    assert "small" in {preset.name for preset in rig.shot().presets}
