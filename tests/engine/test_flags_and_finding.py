"""The flags of the installed engine, and how a running server is found."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.engine.launch import engine_env, engine_home
from tests.engine.server import EngineServer

from kvctl.core.domain.presets.flags import FlagCatalogue, Severity, check_flags
from kvctl.core.domain.presets.launch_plan import render
from kvctl.core.domain.presets.preset import Origin, Setting, merge
from kvctl.core.domain.presets.text import parse_preset
from kvctl.core.probes.processes import HostProcesses
from kvctl.core.servers.flags.asking import CatalogueCache
from kvctl.core.servers.flags.catalogue import from_document, locate, read_catalogue
from kvctl.core.servers.processes.discover import discover

pytestmark = pytest.mark.engine

RECORDED = Path(__file__).parents[1] / "data" / "flags" / "0.5.23.json"
ARGPARSE = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([n[2:] for a in parser._actions for n in a.option_strings if n[:2] == "--"]))
"""


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


def test_a_server_that_runs_here_is_found_with_its_address_and_log(engine: EngineServer) -> None:
    found = {server.identity.pid: server for server in discover(HostProcesses())}
    assert found[engine.pid].url == engine.url
    assert found[engine.pid].log_path == str(engine.log_path)


def test_its_own_help_tells_what_its_source_does(installed_engine: None, tmp_path: Path) -> None:
    """The way of containers: `--help` through a command template, with the real SGLang behind."""
    home = engine_home()
    command = [str(home.python), "-m", "sglang.launch_server", "{sglang_args}"]
    text = f'[launch]\ncommand = {json.dumps(command)}\nmodel-path = "/m"\n'
    plan = render(merge([parse_preset("p", "p.toml", text)]), {})
    cache = CatalogueCache(tmp_path)
    told = cache.of_plan(plan, engine_env(home), None)
    assert told.problem is None and told.catalogue is not None
    assert told.catalogue.version == "0.5.23" and told.catalogue.is_from_help
    assert len(list(tmp_path.glob("help-0.5.23-*.txt"))) == 1
    source = {flag.name: flag for flag in installed_catalogue().flags}
    hidden = {"forward-pass-metrics-worker-id", "forward-pass-metrics-ipc-name"}
    assert {flag.name for flag in told.catalogue.flags} == set(source) - hidden
    for flag in told.catalogue.flags:
        assert not source[flag.name].choices or flag.choices == source[flag.name].choices
