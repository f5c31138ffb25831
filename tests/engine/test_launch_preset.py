"""The shipped preset `cpu-tiny` on the real engine: checked, launched, found, stopped."""

import json
import os
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.engine.launch import engine_env, engine_home
from tests.engine.server import free_port

from kvctl.core.clock import RealClock, within
from kvctl.core.domain.flags import FlagCatalogue, Severity, check_flags
from kvctl.core.domain.presets import Origin, Setting
from kvctl.core.probes.processes import HostProcesses
from kvctl.core.servers.discover import discover
from kvctl.core.servers.flag_catalogue import from_document, locate, read_catalogue
from kvctl.core.servers.launch import Launcher
from kvctl.core.servers.preset_store import PresetStore, shipped_folder

pytestmark = pytest.mark.engine

RECORDED = Path(__file__).parents[1] / "data" / "flags" / "0.5.23.json"
ARGPARSE = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([n[2:] for a in parser._actions for n in a.option_strings if n[:2] == "--"]))
"""


def text_of(path: str) -> str:
    return Path(path).read_text(errors="replace")


def installed_catalogue() -> FlagCatalogue:
    installed = locate(str(engine_home().python))
    assert installed is not None
    catalogue = read_catalogue(installed)
    assert catalogue is not None
    return catalogue


def test_the_recorded_catalogue_is_that_of_the_installed_engine(installed_engine: None) -> None:
    assert set(installed_catalogue().flags) == set(
        from_document(json.loads(RECORDED.read_text())).flags
    )


def test_the_catalogue_has_exactly_the_flags_that_the_engine_parses(installed_engine: None) -> None:
    home = engine_home()
    done = subprocess.run(
        [str(home.python), "-c", ARGPARSE],
        env=engine_env(home),
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert set(installed_catalogue().names()) == set(json.loads(done.stdout)) - {"help"}


def test_no_abbreviation_that_argparse_takes_is_accepted(installed_engine: None) -> None:
    catalogue = installed_catalogue()
    names = set(catalogue.names())
    shortened = {name[:-1] for name in names if len(name) > 8} - names
    for name in shortened:
        found = check_flags([Setting(name, True, Origin("p", "p"))], catalogue)
        assert any(f.severity is Severity.ERROR for f in found), name


async def test_the_shipped_preset_starts_and_stops_a_real_server(
    installed_engine: None, tmp_path: Path
) -> None:
    port = str(free_port())
    environment = {**os.environ, **engine_home().variables(), "KVCTL_ENGINE_PORT": port}
    store = PresetStore([shipped_folder()], environment)
    plan = store.launch_plan(store.read("cpu-tiny-2x"))
    clock = RealClock()
    launcher = Launcher(clock, environment)
    launched = launcher.spawn(plan, tmp_path / "server.log")

    async def ready() -> None:
        while "fired up" not in (text := text_of(launched.log_path)):
            assert launcher.exit_of(launched.identity) is None, text[-2000:]
            await clock.sleep(0.2)

    try:
        await within(clock, 240, ready())
        async with httpx.AsyncClient(base_url=plan.url, timeout=60) as http:
            info = (await http.get("/server_info")).json()
            assert info["max_total_num_tokens"] == 8192
            answer = await http.post(
                "/generate", json={"text": "abc", "sampling_params": {"max_new_tokens": 5}}
            )
            assert len(answer.json()["output_ids"]) == 5
        found = {server.identity: server for server in discover(HostProcesses())}
        assert found[launched.identity].url == plan.url
        assert found[launched.identity].log_path == launched.log_path
        os.kill(launched.pid, signal.SIGTERM)
        assert await within(clock, 60, launcher.wait(launched.identity)) == 0
    finally:
        if launcher.exit_of(launched.identity) is None:
            os.killpg(launched.session, signal.SIGKILL)
            await launcher.wait(launched.identity)
