"""The main job on a real engine, from nothing to every answer on disk once: by verbs, by keys."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.terminal import Terminal
from tests.engine.keys import choose, in_flight, leave_dialog, say_yes, wait_running
from tests.engine.operating import Document, Place, in_session, place_in
from tests.engine.server import wait_for

pytestmark = pytest.mark.engine

TOKENS = 220
NAME = "job"
START_WITHIN_S = 120.0
READING_VERBS = (
    ("status",),
    ("gpus",),
    ("presets", "list"),
    ("presets", "show", "cpu-tiny"),
    ("presets", "diff", "running", "cpu-tiny-2x"),
    ("run", "status"),
    ("daemon", "status"),
)


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


def is_under_way(run: Document) -> bool:
    return bool(0 < run["done"] < run["total"])


# -- from the command line ------------------------------------------------------------------------


def test_the_main_job_by_verbs_alone(place: Place) -> None:
    place.write_run(NAME, rows=50, tokens=TOKENS)
    assert place.kvctl("daemon", "status").status == 3
    place.do("server", "start", "cpu-tiny")
    assert place.server()["preset"] == "cpu-tiny"
    assert place.kvctl("run", "start", "nowhere.toml").status == 2
    place.do("run", "start", f"{NAME}.toml")
    in_flight_follows_the_throttle(place)
    pause_drains_and_holds(place)
    documents_parse(place)
    place.do("run", "resume")
    place.until(lambda run: run["in_flight"] > 0, "requests again")
    a_restart_keeps_what_was_generated(place)
    the_run_outlives_its_kvctld(place)
    the_kvctld_outlives_its_runtime_folder(place)
    place.until(lambda run: run["state"] == "finished", "the end of the run")
    place.check_output(NAME, TOKENS)
    continued_answers_are_those_of_an_uninterrupted_request(place)
    the_server_stops_and_leaves_nothing(place)


def in_flight_follows_the_throttle(place: Place) -> None:
    assert place.until(lambda run: run["in_flight"] > 0, "requests")["mode"] == "auto"
    place.do("run", "throttle", "20")
    place.until(lambda run: run["in_flight"] == 20, "20 in flight")
    assert "nothing in flight is aborted" in place.do("run", "throttle", "4")
    run = place.until(lambda run: run["in_flight"] == 4, "4 in flight")
    assert (run["mode"], run["target"], run["partials"]) == ("manual", 4, 0)
    place.do("run", "throttle", "auto")
    place.until(lambda run: run["in_flight"] > 4, "more than 4 by the law")
    assert place.run()["mode"] == "auto"


def pause_drains_and_holds(place: Place) -> None:
    place.do("run", "pause")
    run = place.until(lambda run: run["in_flight"] == 0, "nothing in flight")
    assert run["state"] == "paused" and is_under_way(run)
    lines = place.do("watch", "--json", "--count", "4", "--interval", "0.5").splitlines()
    seen = [json.loads(line)["run"] for line in lines]
    assert len(seen) == 4 and {run["in_flight"] for run in seen} == {0}
    assert len({run["done"] for run in seen[1:]}) == 1  # the last answers are being written


def documents_parse(place: Place) -> None:
    for words in READING_VERBS:
        assert place.ask(*words)
    assert place.kvctl("presets", "show", "nothing", "--json").status == 2
    assert place.kvctl("server", "stop").status == 4  # no terminal to ask on, and no --yes


def a_restart_keeps_what_was_generated(place: Place) -> None:
    old = place.server()
    place.until(is_under_way, "a run under way")
    told = place.do("server", "restart", "cpu-tiny-2x", "--yes")
    assert re.search(r"harvest +[1-9]\d* partials, [1-9][\d,]* tokens on disk", told), told
    place.do("run", "throttle", "3")  # so that there is work left for what follows
    new = place.server()
    assert (new["preset"], new["pool_tokens"]) == ("cpu-tiny-2x", 8192)
    assert new["pid"] != old["pid"] and not in_session(old["pid"])
    done = len(place.answers(NAME))
    place.until(lambda run: run["done"] > done, "answers of the new server")


def the_run_outlives_its_kvctld(place: Place) -> None:
    assert is_under_way(place.run())
    server = place.server()["pid"]
    pid = place.kill_kvctld()
    place.do("run", "throttle", "6")
    assert place.kvctld()["pid"] != pid
    run = place.until(lambda run: run["target"] == 6, "the number that was set")
    assert (run["name"], run["mode"]) == (NAME, "manual") and is_under_way(run)
    assert place.server()["pid"] == server
    place.do("run", "throttle", "auto")


def the_kvctld_outlives_its_runtime_folder(place: Place) -> None:
    info = place.kvctld()
    runtime = Path(info["socket"]).parent
    assert runtime != place.state
    shutil.rmtree(runtime)
    assert place.run()["name"] == NAME
    assert place.kvctld()["pid"] == info["pid"]


def continued_answers_are_those_of_an_uninterrupted_request(place: Place) -> None:
    server = place.server()
    continued = [a for a in place.answers(NAME) if len(launches(a)) > 1]
    assert continued
    for answer in continued[:3]:
        assert sum(segment["n"] for segment in answer["segments"]) == TOKENS
        body = {
            "input_ids": answer["input_ids"],
            "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0},
        }
        whole = httpx.post(f"{server['url']}/generate", json=body, timeout=60).json()
        assert answer["output_ids"] == whole["output_ids"], answer["id"]


def launches(answer: Document) -> set[str]:
    """Which starts of the server made an answer."""
    return {segment["launch"] for segment in answer.get("segments", ())}


def the_server_stops_and_leaves_nothing(place: Place) -> None:
    pid, kvctld = place.server()["pid"], place.kvctld()["pid"]
    assert len(in_session(pid)) >= 3
    place.do("server", "stop", "--yes")
    assert in_session(pid) == []
    place.do("daemon", "stop")
    wait_for(lambda: not in_session(kvctld), "the end of kvctld", 10)
    assert place.kvctl("run", "verify", f"{NAME}.toml").status == 0
    assert place.kvctl("daemon", "status").status == 3


# -- from the panel -------------------------------------------------------------------------------


def test_the_main_job_by_keys_in_the_panel(place: Place) -> None:
    place.write_run(NAME, rows=40, tokens=TOKENS, copies=2)
    with place.panel() as panel:
        start_a_server(panel)
        start_the_run(panel)
        slots_follow_the_keys(panel)
        p_stops_sending_and_sends_again(panel)
        restart_with_another_preset(panel)
        the_panel_brings_a_killed_kvctld_back(panel, place)
        kvctld = place.kvctld()["pid"]
        panel.hang_up()
        panel.wait_exit()
    run = place.run()
    assert run["state"] == "running" and is_under_way(run)
    shutil.rmtree(Path(place.kvctld()["socket"]).parent)
    with place.panel() as panel:
        wait_running(panel, NAME)
        panel.send("q")
        assert panel.wait_exit() == 0
    assert place.kvctld()["pid"] == kvctld
    with place.panel() as panel:
        panel.wait_for(f"{NAME} · FINISHED", 120)
        panel.wait_for("160 of 160")
        stop_the_server(panel, place)
    place.check_output(NAME, TOKENS)
    assert any(len(launches(answer)) > 1 for answer in place.answers(NAME))


def start_a_server(panel: Terminal) -> None:
    panel.wait_for("no server.*no run")
    panel.wait_for("S start")
    panel.send("S")
    choose(panel, "cpu-tiny")
    say_yes(panel)
    panel.wait_for(">  1 process")
    panel.wait_for("✓  5 first token", START_WITHIN_S)
    panel.wait_for("done: cpu-tiny at")
    leave_dialog(panel, "done: cpu-tiny")
    panel.wait_for("cpu-tiny · READY")


def start_the_run(panel: Terminal) -> None:
    panel.send("s")
    panel.wait_for("Start a run")
    panel.send(f"{NAME}.toml")
    panel.wait_for(f"run {NAME}: B2 B3, slots auto")
    panel.send("\r")
    wait_running(panel, NAME)
    panel.wait_for(r"slots AUTO")


def slots_follow_the_keys(panel: Terminal) -> None:
    panel.send("=")
    panel.wait_for("Slots are")
    panel.send("20\r")
    panel.wait_for(r"slots MANUAL +20, in flight +20")
    panel.send("-")
    panel.wait_for(r"slots MANUAL +16, in flight +16")
    panel.send("+")
    panel.wait_for(r"slots MANUAL +20, in flight +20")
    panel.send("a")
    panel.wait_for("slots AUTO")


def p_stops_sending_and_sends_again(panel: Terminal) -> None:
    panel.send("p")
    panel.wait_for(r"PAUSED.*in flight +0 ")
    wait_second(panel)  # the last answers are being written
    done = done_of(panel)
    wait_second(panel)
    assert in_flight(panel) == 0 and done_of(panel) == done
    panel.send("p")
    wait_running(panel, NAME)


def wait_second(panel: Terminal) -> None:
    """Wait until the header's clock has moved on."""
    shown = panel.lines[0][-8:]
    panel.wait_until(lambda: panel.lines[0][-8:] > shown, "the next second")


def done_of(panel: Terminal) -> int:
    found = re.search(rf"3 Run {NAME} ── ([\d,]+) of", panel.text)
    assert found, panel.text
    return int(found[1].replace(",", ""))


def restart_with_another_preset(panel: Terminal) -> None:
    panel.send("R")
    choose(panel, "cpu-tiny-2x")
    panel.wait_for(r"\(•\) harvest")
    say_yes(panel)
    panel.wait_for(r"✓  2 harvest .*[1-9]\d* partials, [1-9][\d,]* tokens on disk")
    panel.wait_for(r"✓  3 stop", START_WITHIN_S)
    panel.wait_for(r">  \d process|✓  \d process", START_WITHIN_S)
    panel.wait_for("done: cpu-tiny-2x at", START_WITHIN_S)
    leave_dialog(panel, "done: cpu-tiny-2x")
    panel.wait_for("cpu-tiny-2x · READY")


def the_panel_brings_a_killed_kvctld_back(panel: Terminal, place: Place) -> None:
    wait_running(panel, NAME)
    killed = place.kill_kvctld()
    panel.wait_until(lambda: place.kvctl("daemon", "status").status == 0, "another kvctld", 60)
    assert place.kvctld()["pid"] != killed
    wait_running(panel, NAME)


def stop_the_server(panel: Terminal, place: Place) -> None:
    pid = place.server()["pid"]
    panel.send("S")
    panel.wait_for("Stop ── main")
    say_yes(panel)
    wait_for(lambda: not in_session(pid), "the end of the server", 60)
    panel.wait_for("STOPPED|no server")
    panel.send("q")
    assert panel.wait_exit() == 0
