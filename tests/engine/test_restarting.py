"""Restart of a paused server, and a server that somebody started by hand, on a real engine."""

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.terminal import Terminal
from tests.engine.launch import engine_command, engine_env
from tests.engine.operating import Place, in_session, place_in
from tests.engine.server import READY_LINE, wait_for

NAME, ROWS, TOKENS = "paused", 20, 200


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


@pytest.mark.soak
@pytest.mark.parametrize("by", ["kvctl", "another"])
def test_a_paused_server_restarts_without_hanging(place: Place, by: str) -> None:
    place.write_run(NAME, ROWS, TOKENS)
    place.do("server", "start", "cpu-tiny")
    place.do("run", "start", f"{NAME}.toml")
    place.until(lambda run: run["in_flight"] > 0, "requests")
    server = place.server()
    if by == "kvctl":
        place.do("run", "pause", "--how", "freeze")
    else:
        post(server["url"], "/pause_generation", {"mode": "retract"})
        wait_for(lambda: "stand still" in place.server()["state_reason"], "frozen counts", 30)
    # A request sent during a pause is held behind it, and with it every drain.
    held = threading.Thread(target=ask, args=(server["url"],))
    held.start()
    told = place.do("server", "restart", "cpu-tiny-2x", "--yes", "--cut-foreign")
    assert "cpu-tiny-2x at" in told
    held.join(10)
    assert not held.is_alive() and in_session(server["pid"]) == []
    if by == "kvctl":
        place.do("run", "resume")
    place.until(lambda run: run["state"] == "finished", "the end of the run")
    place.check_output(NAME, TOKENS)


def post(url: str, path: str, body: dict[str, object]) -> None:
    assert httpx.post(url + path, json=body, timeout=30).status_code == 200


def is_there(process: psutil.Process) -> bool:
    """Whether it is there and no zombie that its shell has not collected yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ask(url: str) -> None:
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}}
    try:
        httpx.post(f"{url}/generate", json=body, timeout=120)
    except httpx.TransportError:
        return  # cut with the server, as agreed to


@pytest.mark.engine
def test_a_server_started_by_hand_is_adopted_watched_and_stopped(place: Place) -> None:
    """In another terminal, by a person at a shell."""
    environ = {**engine_env(), "HOME": str(place.folder), "PS1": "ready> "}
    with Terminal(["bash", "--norc", "-i"], environ=environ, cwd=place.folder) as shell:
        shell.wait_for("ready>")
        shell.send(f"{shlex.join(engine_command(place.port))} > by-hand.log 2>&1\r")
        log = place.folder / "by-hand.log"
        wait_for(lambda: log.exists() and READY_LINE in log.read_text("utf-8"), "ready", 300)
        assert "nothing was touched" in place.do("server", "adopt", f"127.0.0.1:{place.port}")
        wait_for(lambda: place.server()["state"] == "idle", "its figures", 30)
        server = place.server()
        assert (server["preset"], server["pool_tokens"]) == (None, 4096)
        main = psutil.Process(server["pid"])
        members = [main, *main.children(recursive=True)]
        assert len(members) >= 3
        place.do("server", "stop", "--yes")
        wait_for(lambda: not any(is_there(process) for process in members), "all gone", 10)
        shell.send("exit\r")
        shell.wait_exit()
