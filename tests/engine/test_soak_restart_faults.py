"""What goes wrong in a restart, really: told in the panel, and the old preset is back with one key.

    KVCTL_SOAK_FAULTS="model removed,scheduler killed" pytest -m soak \\
        tests/engine/test_soak_restart_faults.py

A run goes on all the while; the table goes to tests/benchmarks/results/restart-faults.md.
"""

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.e2e.terminal import KVCTL, Terminal
from tests.engine.keys import choose, leave_dialog, say_yes, select, wait_running
from tests.engine.launch import engine_home
from tests.engine.operating import Place, in_session, place_in
from tests.engine.server import wait_for

pytestmark = pytest.mark.soak

NAME, ROWS, COPIES, TOKENS, SLOTS = "faults", 40, 3, 400, 2
WITHIN_S = 300.0
CARD = "copy this card"
"""What only the card shows: its title stands over pane 1 as well."""
SEEN_WITHIN_S = 2.0
"""From the death of a process that serves to the word FAILED in the panel."""
LOG_DISK_BYTES = 66 << 20
RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "restart-faults.md"
HEAD = """# What goes wrong in a restart, on a real engine

By key in the panel, while a run of {total} prompts goes on: {answers} answers on disk at the end,
missing {missing}, twice {twice}. SGLang 0.5.23 on the CPU. "Back" is from the one key to the first
token of the preset that worked before. Made by
`pytest -m soak tests/engine/test_soak_restart_faults.py`; the last row is a run of its own.

| fault | what the panel says | then |
| --- | --- | --- |
"""
PRESETS = {
    "wrong-flag": 'extends = "cpu-tiny"\n[flags]\nmax-total-token = 8192\n',
    "wrong-value": 'extends = "cpu-tiny"\n[flags]\ncontext-length = 1000000\n',
    "own-model": 'extends = "cpu-tiny"\n[launch]\nmodel-path = "{folder}/model"\n',
    "with-child": 'extends = "cpu-tiny"\n[launch]\ncommand = ["{folder}/launch.sh", '
    '"{sglang_args}"]\n',
}
LAUNCH_SCRIPT = """#!/bin/sh
# A child that has lost its parent, ignores TERM and outlives the server.
( (trap '' TERM; exec sleep 86399) & )
exec "$KVCTL_ENGINE_PYTHON" -m sglang.launch_server "$@"
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A place with a server, a run and a panel on them."""

    place: Place
    panel: Terminal


@dataclass(frozen=True, slots=True)
class Round:
    fault: str
    shown: str
    then: str

    def line(self) -> str:
        return f"| {self.fault} | {self.shown} | {self.then} |\n"


# -- what an operator does and sees ---------------------------------------------------------------


def refused(bench: Bench, preset: str, line: str) -> str:
    """The dialog shows a failed check, y does nothing, the server is untouched."""
    pid = bench.place.server()["pid"]
    bench.panel.send("R")
    select(bench.panel, preset)
    shown = seen(bench.panel, rf"✗ ({line}.*?) *│")
    bench.panel.send("y")
    bench.panel.wait_for(r"refused: ")
    leave_dialog(bench.panel, "nothing has been touched yet")
    assert bench.place.server()["pid"] == pid
    return shown


def begin(bench: Bench, preset: str) -> None:
    """Press R, choose a preset whose checks pass, and y."""
    bench.panel.send("R")
    choose(bench.panel, preset)
    say_yes(bench.panel)


def card_of(bench: Bench, cause: str) -> str:
    """The start has failed; its card names the cause."""
    bench.panel.wait_for(r"b back to cpu-tiny", WITHIN_S)
    bench.panel.send("w")
    bench.panel.wait_for(CARD)
    return seen(bench.panel, rf"│ ({cause}.*?) *│")


def seen(panel: Terminal, pattern: str) -> str:
    """Wait for a line and return its part in brackets."""
    found: list[str] = []

    def is_there() -> bool:
        match = re.search(pattern, panel.text)
        found[:] = [match[1]] if match else []
        return bool(found)

    panel.wait_until(is_there, pattern, WITHIN_S)
    return found[0]


def back(bench: Bench) -> str:
    """One key: the preset that worked serves again and the run goes on; nothing is left behind."""
    begun = time.monotonic()
    bench.panel.send("b")
    bench.panel.wait_for("done: cpu-tiny at", WITHIN_S)
    took = time.monotonic() - begun
    leave_dialog(bench.panel, "done: cpu-tiny")
    goes_on(bench)
    return f"back after {took:.0f} s with b, the run goes on"


def goes_on(bench: Bench) -> None:
    wait_running(bench.panel, NAME)
    server = bench.place.server()
    assert server["preset"] == "cpu-tiny"
    done = bench.place.run()["done"]
    bench.place.until(lambda run: run["done"] > done, "answers again")


def new_scheduler(bench: Bench, old: int) -> psutil.Process:
    """The scheduler of the server that is being started, once it loads weights."""
    found: list[psutil.Process] = []

    def loads() -> bool:
        servers = bench.place.ask("status")["servers"]
        pids = [s["pid"] for s in servers if s["pid"] not in (None, old)]
        found[:] = [p for pid in pids for p in in_session(pid) if is_scheduler(p)]
        return bool(found) and "Load weight begin" in newest_log(bench.place)

    wait_for(loads, "a scheduler that loads weights", WITHIN_S)
    return found[0]


def is_scheduler(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] == ["sglang::scheduler"]
    except psutil.Error:
        return False


def newest_log(place: Place) -> str:
    logs = sorted(place.state.glob("logs/*.log"), key=lambda path: path.stat().st_mtime)
    return logs[-1].read_text(errors="replace") if logs else ""


# -- the faults -----------------------------------------------------------------------------------


def wrong_flag(bench: Bench) -> Round:
    shown = refused(bench, "wrong-flag", "flags: .*max-total-token")
    goes_on(bench)
    return Round("wrong flag", shown, "nothing was touched, the run goes on")


def wrong_value(bench: Bench) -> Round:
    begin(bench, "wrong-value")
    shown = card_of(bench, "the server failed while it started: ValueError: ")
    return Round("a value that only SGLang itself refuses", shown, back(bench))


def model_removed(bench: Bench) -> Round:
    model = bench.place.folder / "model"
    shutil.copytree(engine_home().model, model)
    begin(bench, "own-model")
    bench.panel.wait_for(r"✓  3 stop", WITHIN_S)
    shutil.rmtree(model)
    shown = card_of(bench, "the model was not found")
    return Round("model folder removed after the checks", shown, back(bench))


def model_missing(bench: Bench) -> Round:
    shown = refused(bench, "own-model", "model: ")
    goes_on(bench)
    return Round("model folder not there", shown, "nothing was touched, the run goes on")


def port_taken(bench: Bench) -> Round:
    with port_taker(bench.place.port) as taker:
        begin(bench, "cpu-tiny-2x")
        wait_for(taker.has_port.is_set, "a free port", WITHIN_S)
        shown = card_of(bench, "the port is already in use")
        bench.panel.send("b")
        also = seen(bench.panel, r"stopped: .*?(port: \S.*?) *│")
        assert str(os.getpid()) in bench.panel.text
        leave_dialog(bench.panel, "stopped: ")
    bench.panel.send("w")
    bench.panel.wait_for(CARD)
    return Round(
        "port taken by another process while it loads",
        shown,
        f'b while it is taken: "{also} …"; once it is free {back(bench)}',
    )


@dataclass(slots=True)
class PortTaker:
    has_port: threading.Event
    is_over: threading.Event


@contextmanager
def port_taker(port: int) -> Iterator[PortTaker]:
    """Listen on a port from the moment at which it becomes free."""
    taker = PortTaker(threading.Event(), threading.Event())

    def take() -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            while not taker.is_over.wait(0.05):
                try:
                    listener.bind(("127.0.0.1", port))
                    break
                except OSError:
                    continue  # the old server has it still
            listener.listen()
            taker.has_port.set()
            taker.is_over.wait()

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield taker
    finally:
        taker.is_over.set()
        thread.join()


def scheduler_killed(bench: Bench) -> Round:
    old = bench.place.server()["pid"]
    begin(bench, "cpu-tiny-2x")
    new_scheduler(bench, old).kill()
    shown = card_of(bench, "(?:a process of the server|a rank|the server) ")
    return Round("SIGKILL of the scheduler during load", shown, back(bench))


def scheduler_killed_serving(bench: Bench) -> Round:
    (scheduler,) = [p for p in in_session(bench.place.server()["pid"]) if is_scheduler(p)]
    killed_at = time.monotonic()
    scheduler.kill()
    bench.panel.wait_for(r"FAILED", WITHIN_S)
    took = time.monotonic() - killed_at
    assert took < SEEN_WITHIN_S, took
    bench.panel.send("w")
    bench.panel.wait_for(CARD)
    shown = seen(bench.panel, r"│ ((?:a process of the server|its process) .*?) *│")
    return Round(
        "SIGKILL of the scheduler while it serves",
        f"{shown} (seen after {took:.1f} s)",
        back(bench),
    )


def leftover(bench: Bench) -> Round:
    """A child that ignores TERM goes with the next restart, and is said to."""
    bench.panel.send("R")
    select(bench.panel, "with-child")
    bench.panel.wait_for(r"✓ interpreter|✓ program|✓ ")
    say_yes(bench.panel)
    bench.panel.wait_for("done: with-child at", WITHIN_S)
    leave_dialog(bench.panel, "done: with-child")
    wait_running(bench.panel, NAME)
    main = bench.place.server()["pid"]
    (child,) = [p for p in in_session(main) if p.cmdline()[:1] == ["sleep"]]
    begin(bench, "cpu-tiny")
    shown = seen(bench.panel, r"✓ +4 (free GPUs .*?) *│")
    bench.panel.wait_for("done: cpu-tiny at", WITHIN_S)
    assert not child.is_running() and in_session(main) == []
    leave_dialog(bench.panel, "done: cpu-tiny")
    goes_on(bench)
    return Round("a leftover that ignores TERM", shown, "the restart goes on, the run too")


FAULTS: dict[str, Callable[[Bench], Round]] = {
    "wrong flag": wrong_flag,
    "wrong value": wrong_value,
    "model removed": model_removed,
    "model missing": model_missing,
    "port taken": port_taken,
    "scheduler killed": scheduler_killed,
    "scheduler killed serving": scheduler_killed_serving,
    "leftover": leftover,
}
CHOSEN = [name.strip() for name in os.environ.get("KVCTL_SOAK_FAULTS", "").split(",") if name]


# -- the rounds -----------------------------------------------------------------------------------


def test_every_fault_is_told_and_one_key_leads_back(installed_engine: None, tmp_path: Path) -> None:
    rounds: list[Round] = []
    with place_in(tmp_path) as place:
        write_presets(place)
        place.do("server", "start", "cpu-tiny")
        begin_run(place)
        with place.panel() as panel:
            wait_running(panel, NAME)
            for name in CHOSEN or FAULTS:
                rounds.append(FAULTS[name](Bench(place, panel)))
                print(rounds[-1].line(), end="", flush=True)
            panel.send("q")
            assert panel.wait_exit() == 0
        finish(place, rounds)


def test_a_full_disk_for_logs_is_told(installed_engine: None, tmp_path: Path) -> None:
    """kvctld runs where its logs lie on a small disk of their own, which fills up."""
    with place_in(tmp_path) as place, ExitStack() as stack:
        write_presets(place)
        logs = stack.enter_context(small_log_disk(place))
        place.do("server", "start", "cpu-tiny")
        begin_run(place)
        with place.panel() as panel:
            wait_running(panel, NAME)
            bench = Bench(place, panel)
            begin(bench, "cpu-tiny-2x")
            panel.wait_for(r"✓  3 stop", WITHIN_S)
            filler = logs / "filler"
            fill(filler)
            shown = card_of(bench, "the disk of its log is full")
            panel.send("b")
            also = seen(panel, r"stopped: .*?(log disk: \S.*?) *│")
            leave_dialog(panel, "stopped: ")
            filler.unlink()
            panel.send("w")
            panel.wait_for(CARD)
            then = f'b while it is full: "{also} …"; with room {back(bench)}'
            last = Round("full disk for logs", shown, then)
        place.do("run", "throttle", "auto")
        place.until(lambda run: run["state"] == "finished", "the end of the run", 900)
        place.check_output(NAME, TOKENS)
    if not CHOSEN:
        rows = RESULT.read_text().splitlines(keepends=True)
        others = [row for row in rows if not row.startswith(f"| {last.fault} |")]
        RESULT.write_text("".join([*others, last.line()]))


def write_presets(place: Place) -> None:
    folder = place.state / "config" / "presets"
    folder.mkdir(parents=True)
    for name, text in PRESETS.items():
        (folder / f"{name}.toml").write_text(text.replace("{folder}", str(place.folder)))
    script = place.folder / "launch.sh"
    script.write_text(LAUNCH_SCRIPT)
    script.chmod(0o755)


def begin_run(place: Place) -> None:
    place.write_run(NAME, ROWS, TOKENS, COPIES)
    place.do("run", "start", f"{NAME}.toml")
    place.do("run", "throttle", str(SLOTS))


def finish(place: Place, rounds: list[Round]) -> None:
    place.do("run", "throttle", "auto")
    place.until(lambda run: run["state"] == "finished", "the end of the run", 900)
    wanted, answers = place.wanted(), place.answers(NAME)
    ids = {(a["partition"], a["id"]) for a in answers}
    counts = {"missing": len(wanted.keys() - ids), "twice": len(answers) - len(ids)}
    head = HEAD.format(total=len(wanted), answers=len(ids), **counts)
    if not CHOSEN:
        RESULT.write_text(head + "".join(one.line() for one in rounds))
    place.check_output(NAME, TOKENS)


@contextmanager
def small_log_disk(place: Place) -> Iterator[Path]:
    """Run kvctld in a mount namespace of its own; the path is the disk as seen from here."""
    logs = place.state / "logs"
    logs.mkdir(parents=True)
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mount = f"mount -t tmpfs -o size={LOG_DISK_BYTES} tmpfs '{logs}'"
    become = f"exec '{KVCTL}' --state-dir '{place.state}' daemon run"
    process = subprocess.Popen(
        [*own, "sh", "-c", f"{mount} && {become}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=place.environ,
        cwd=place.folder,
    )
    try:
        wait_for(lambda: place.kvctl("daemon", "status").status == 0, "a kvctld", 60)
        yield Path(f"/proc/{place.kvctld()['pid']}/root") / logs.relative_to("/")
    finally:
        place.kvctl("server", "stop", "--yes", "--how", "abandon")
        process.terminate()
        process.wait(60)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    block = b"\0" * (1 << 20)
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(block[:size])
            except OSError:
                continue  # a smaller piece may still fit
