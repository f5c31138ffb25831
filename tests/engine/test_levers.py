"""The levers at the KV ceiling on a real engine: the policy `pause`, and the live cap."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.engine.operating import Document, Place, place_in
from tests.engine.server import wait_for

pytestmark = pytest.mark.soak

TOKENS = 260
NAME = "ceiling"
ABOVE, BELOW = 0.85, 0.45
SLOTS = 24
"""Three times what the pool of 4,096 tokens holds of whole answers."""


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


def write_run(place: Place, rows: int, slots: int, policy: str = "") -> None:
    path = place.write_run(NAME, rows=rows, tokens=TOKENS)
    text = path.read_text().replace('"auto"', str(slots))
    path.write_text(text.replace("scout = 2\n", f"scout = 2\n{policy}"))


def events(place: Place, kind: str) -> list[str]:
    """What the audit log tells of one kind, oldest first, by json alone."""
    lines = (place.state / "audit.jsonl").read_text().splitlines()
    return [row["text"] for row in map(json.loads, lines) if row["kind"] == kind]


def is_paused_by_policy(run: Document) -> bool:
    return run["state"] == "paused" and "policy" in run["reason"]


def test_the_policy_pauses_at_its_mark_and_resumes_below_with_nothing_aborted(
    place: Place,
) -> None:
    policy = f'on_ceiling = "pause"\npause_above = {ABOVE}\nresume_below = {BELOW}\n'
    write_run(place, rows=30, slots=SLOTS, policy=policy)
    place.do("server", "start", "cpu-tiny")
    place.do("run", "start", f"{NAME}.toml")
    paused = place.until(is_paused_by_policy, "a pause of the policy")
    assert "queued" in paused["reason"] or "retracted" in paused["reason"]
    place.until(lambda run: run["state"] != "paused", "sending again by itself")
    place.do("run", "throttle", "auto")
    run = place.until(lambda run: run["state"] == "finished", "the end of the run", 240.0)
    assert (run["done"], run["failed"], run["partials"]) == (60, 0, 0)
    place.check_output(NAME, TOKENS)
    told = events(place, "ceiling")
    assert told[0].startswith("paused: usage ") and "sending stops until usage is" in told[0]
    usage = float(told[0].split("usage ")[1].split(",")[0])
    assert usage >= ABOVE
    resumed = next(text for text in told if text.startswith("resumed: usage "))
    assert float(resumed.split("usage ")[1].split(",")[0]) <= BELOW
    place.do("server", "stop", "--yes")


def cap_at_the_server(place: Place) -> int:
    """The cap as the engine itself tells it."""
    info = httpx.get(f"http://127.0.0.1:{place.port}/server_info", timeout=30).json()
    return int(info["internal_states"][0]["pp_max_micro_batch_size"])


def running(place: Place) -> float:
    found: float = place.server()["running"] or 0
    return found


def test_the_live_cap_is_set_on_the_engine_remembered_and_put_back(place: Place) -> None:
    write_run(place, rows=50, slots=12)
    place.do("server", "start", "cpu-tiny")
    own = cap_at_the_server(place)
    place.do("run", "start", f"{NAME}.toml")
    place.until(lambda run: run["in_flight"] == 12, "12 in flight")
    told = place.do("server", "cap", "2")
    assert "main runs at most 2 requests" in told and str(own) in told
    assert cap_at_the_server(place) == place.server()["live_cap"] == 2
    wait_for(lambda: running(place) == 2, "2 running", 60.0)
    refused = place.kvctl("server", "cap", str(own + 1))
    assert refused.status == 2 and f"the cap of main is 1 to {own}" in refused.err
    place.kill_kvctld()
    wait_for(lambda: place.server()["live_cap"] == 2, "the cap at the next kvctld", 30.0)
    assert "still has the cap" in events(place, "cap")[-1]
    place.do("server", "cap", "off")
    assert cap_at_the_server(place) == own
    place.do("server", "cap", "6")
    run = place.until(lambda run: run["state"] == "finished", "the end of the run", 240.0)
    assert run["done"] == run["total"] > 0
    wait_for(lambda: cap_at_the_server(place) == own, "the engine's own cap again", 20.0)
    place.do("server", "cap", "3")
    place.do("daemon", "stop")
    assert cap_at_the_server(place) == own
    place.check_output(NAME, TOKENS)
    place.do("server", "stop", "--yes")
