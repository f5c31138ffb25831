"""`kvctl demo`: a simulated 8-GPU host in a folder of its own; nothing else is touched.

A kvctld of its own works on that folder, drives simulated servers through the same launcher,
probes and killer as the real thing, and everything of it ends with the demo.
"""

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kvctl.core.cli.panel import check_terminal, show_panel
from kvctl.core.cli.progress import event_line
from kvctl.core.cli.render import operating_point_lines
from kvctl.core.cli.session import Session
from kvctl.core.cli.signals import signals_as_interrupts
from kvctl.core.clock import RealClock
from kvctl.core.controller.commands import StartRun, StartServer
from kvctl.core.daemon.client import DaemonClient
from kvctl.core.daemon.news import events_since
from kvctl.core.daemon.paths import find_paths
from kvctl.core.daemon.spawn import DaemonLaunch, ensure_running
from kvctl.core.daemon.waiting import wait_for
from kvctl.core.documents.figures import Document
from kvctl.core.documents.run import run_document
from kvctl.core.documents.status import operating_points
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.probes.processes import HostProcesses
from kvctl.core.sim.host import DemoHost, prepare_demo, scenario_names
from kvctl.core.sim.simclock import FOLDER_VARIABLE

DEFAULT_SPEED = 20.0
_FOLDER_PREFIX = "kvctl-demo-"
_END_WITHIN_S = 5.0
_ENDED = {RunState.FINISHED, RunState.FAILED}


def demo(session: Session) -> int:
    """Show the panel on a simulated host, or run it to its end and print what was measured."""
    words = session.words
    names = scenario_names()
    scenario = words.scenario or names[0]
    if scenario not in names:
        raise UsageError(f"there is no scenario {scenario!r}; there are: {', '.join(names)}")
    if not words.headless:
        check_terminal(session)
    _sweep()
    with signals_as_interrupts(), _demo_folder() as folder:
        host = prepare_demo(
            folder, scenario, words.speed or DEFAULT_SPEED, RealClock(), _free_port()
        )
        launch = _launch(session, folder, host)
        try:
            ensure_running(launch)
            show = _headless if words.headless else _panel
            return show(session, launch, host)
        finally:
            end_everything(host.host_dir)


def end_everything(host_dir: Path) -> None:
    """End every process that belongs to a simulated host, kvctld first."""
    processes = HostProcesses()

    def members() -> list[ProcessIdentity]:
        return [
            facts.identity
            for facts in processes.all_facts()
            if processes.environment(facts.identity, FOLDER_VARIABLE) == str(host_dir)
            and facts.state != "Z"
        ]

    for number in (signal.SIGTERM, signal.SIGKILL):
        for identity in members():
            with suppress(ProcessLookupError, PermissionError):
                processes.send(identity, number)
        if wait_for(lambda: None if members() else True, _END_WITHIN_S):
            return


def _panel(session: Session, launch: DaemonLaunch, host: DemoHost) -> int:
    threading.Thread(target=_begin, args=(launch, host), daemon=True).start()
    return show_panel(replace(session, given_launch=launch))


def _begin(launch: DaemonLaunch, host: DemoHost) -> None:
    # What fails here is an event on the panel; a demo that is left early has no kvctld any more.
    with suppress(KvctlError), DaemonClient(launch.paths.socket) as client:
        if client.submit(StartServer(host.preset)).is_done:
            client.submit(StartRun(str(host.run_file)))


def _headless(session: Session, launch: DaemonLaunch, host: DemoHost) -> int:
    with DaemonClient(launch.paths.socket) as client:
        for command in (StartServer(host.preset), StartRun(str(host.run_file))):
            outcome = client.submit(command)
            if not outcome.is_done:
                raise KvctlError(outcome.message)
        last = _to_the_end(session, client)
    if session.wants_json():
        session.document(_summary(host, last))
    else:
        for line in operating_point_lines(last.operating_points):
            session.say(line)
    run = last.run
    if run is None or run.state is RunState.FAILED:
        raise KvctlError(f"the simulated run failed: {run.reason if run else 'it is gone'}")
    return 0


def _to_the_end(session: Session, client: DaemonClient) -> Snapshot:
    before: Snapshot | None = None
    for snapshot in client.stream():
        for event in events_since(before, snapshot) if before else ():
            if session.stderr.isatty():
                print(event_line(event), file=session.stderr)
        before = snapshot
        if snapshot.run is None or snapshot.run.state in _ENDED:
            return snapshot
    raise KvctlError("kvctld left before the simulated run had ended")


def _summary(host: DemoHost, snapshot: Snapshot) -> Document:
    return {
        "scenario": host.scenario.name,
        "description": host.scenario.description,
        "simulated": True,
        "speed": host.clock.speed,
        "run": run_document(snapshot),
        "operating_points": operating_points(snapshot.operating_points),
    }


def _launch(session: Session, folder: Path, host: DemoHost) -> DaemonLaunch:
    environ = {k: v for k, v in session.environ.items() if k != "XDG_CONFIG_HOME"}
    environ |= host.environment
    return DaemonLaunch(
        find_paths(environ, state_dir=folder, host="demo", uid=folder.stat().st_uid),
        state_dir=folder,
        arguments=("--simulated", str(host.host_dir)),
        environment=environ,
    )


def _sweep() -> None:
    """Take away the simulated hosts of demos that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*"):
        pid = folder.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        is_mine = folder.lstat().st_uid == os.getuid()
        if is_mine and pid.isdigit() and HostProcesses().facts(int(pid)) is None:
            end_everything(folder / "host")
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _demo_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
