"""Restarts in the middle of 30 answers on a real engine: how many tokens are generated twice.

    pytest -m soak tests/engine/test_soak_harvest.py

The same prompts three times: undisturbed, restarted with harvest, restarted with abandon. What
the engine generated is its own counter, read until it dies; what was needed follows from the
answers on disk. The table goes to tests/benchmarks/results/harvest.md.
"""

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.engine.operating import INPUTS, PROMPTS, Document, Key, Place, place_in

pytestmark = pytest.mark.soak

SLOTS, TOKENS = 30, 110
PRESET = "steps"
"""cpu-tiny with its counters brought up to date at every decode step."""
RESTARTS = 3
DECODED = re.compile(r'^sglang:realtime_tokens_total\{[^}]*mode="decode".*\} (\S+)$', re.MULTILINE)
RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "harvest.md"
HEAD = """# A restart in the middle of 30 answers: tokens generated twice

{rows} prompts of B2 and B3, {tokens} tokens each at temperature 0, {slots} slots, SGLang 0.5.23 on
the CPU in float32; {restarts} restarts by `kvctl server restart`, each while 30 were in flight.
"generated" is the engine's own counter of decode steps (realtime_tokens_total), summed over the
launches; "needed" is what the answers on disk took; "twice" is the difference. "same" are answers
equal, token by token, to those of the undisturbed run. By `pytest -m soak
tests/engine/test_soak_harvest.py`; wanted: below 1 % with harvest, all answers the same.

| run | in flight then | generated | needed | twice | share | kept as partials | same | verify |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


@dataclass(slots=True)
class DecodeCounter:
    """Reads the engine's own count of decoded tokens all the time, over several launches."""

    port: int
    before: float = 0.0
    """Of launches that have ended."""
    last: float = 0.0
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def total(self) -> float:
        return self.before + self.last

    def follow(self) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=5) as http:
            while not self.is_over.wait(0.02):
                with contextlib.suppress(httpx.HTTPError):
                    self.take(http.get("/metrics/").text)

    def take(self, text: str) -> None:
        found = DECODED.search(text)
        now = float(found[1]) if found else 0.0
        if now < self.last:  # another process counts from 0
            self.before += self.last
        self.last = now


@contextlib.contextmanager
def counting(place: Place) -> Iterator[DecodeCounter]:
    counter = DecodeCounter(place.port)
    thread = threading.Thread(target=counter.follow)
    thread.start()
    try:
        yield counter
    finally:
        counter.is_over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run over all prompts."""

    name: str
    in_flight: tuple[int, ...]
    generated: int
    needed: int
    kept: int
    same: int
    total: int
    is_exact: bool

    @property
    def twice(self) -> int:
        return self.generated - self.needed

    @property
    def share(self) -> float:
        return self.twice / self.generated

    def line(self) -> str:
        flights = ", ".join(map(str, self.in_flight)) or "–"
        verdict = "exact" if self.is_exact else "NOT EXACT"
        return (
            f"| {self.name} | {flights} | {self.generated:,} | {self.needed:,} | {self.twice:,} "
            f"| {self.share:.2%} | {self.kept:,} | {self.same} of {self.total} | {verdict} |\n"
        )


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        presets = made.state / "config" / "presets"
        presets.mkdir(parents=True)
        (presets / f"{PRESET}.toml").write_text(
            'extends = "cpu-tiny"\n[flags]\ndecode-log-interval = 1\n'
        )
        made.do("server", "start", PRESET)
        yield made


def test_a_harvested_restart_generates_hardly_a_token_twice(place: Place) -> None:
    whole: dict[Key, list[int]] = {}
    found = [carry_out(place, name, whole) for name in ("undisturbed", "harvest", "abandon")]
    head = HEAD.format(rows=len(whole), tokens=TOKENS, slots=SLOTS, restarts=RESTARTS)
    RESULT.write_text(head + "".join(one.line() for one in found))
    plain, harvest, abandon = found
    assert all(one.is_exact for one in found), RESULT.read_text()
    assert harvest.same == harvest.total and harvest.kept > 1000, RESULT.read_text()
    # The overlapped step after an answer's last token is no token of any answer.
    assert harvest.share - plain.share < 0.01, RESULT.read_text()
    assert abandon.share > 5 * max(0.01, harvest.share - plain.share), RESULT.read_text()


def carry_out(place: Place, name: str, whole: dict[Key, list[int]]) -> Outcome:
    """One run; `whole` takes the answers of the undisturbed one."""
    write_run(place, name)
    flights = []
    with counting(place) as counter:
        until_still(counter)
        start = counter.total
        place.do("run", "start", f"{name}.toml")
        for number in range(RESTARTS if name != "undisturbed" else 0):
            flights.append(restart(place, name, number))
        place.until(lambda run: run["state"] == "finished", "the end of the run", 300)
        until_still(counter)
        generated = int(counter.total - start)
    answers = place.answers(name)
    outputs = {(a["partition"], a["id"]): a["output_ids"] for a in answers}
    whole.update(outputs if not whole else {})
    return Outcome(
        name,
        tuple(flights),
        generated,
        sum(decode_steps(answer) for answer in answers),
        kept_tokens(place.folder / name),
        sum(whole[key] == ids for key, ids in outputs.items()),
        len(whole),
        place.kvctl("run", "verify", f"{name}.toml").status == 0,
    )


def restart(place: Place, how: str, number: int) -> int:
    """Restart once so many are in flight and under way; how many there were."""
    total = sum(place.wanted().values())
    wanted = (number + 1) * total // (RESTARTS + 2)
    seen = place.until(lambda run: run["in_flight"] >= SLOTS - 2 and run["done"] >= wanted, "30")
    place.do("server", "restart", PRESET, "--how", how, "--yes")
    return int(seen["in_flight"])


def write_run(place: Place, name: str) -> None:
    path = place.write_run(name, 60, TOKENS)
    text = path.read_text().replace('concurrency = "auto"', f"concurrency = {SLOTS}")
    path.write_text(text)
    for file in INPUTS.values():
        rows = [json.loads(line) for line in (PROMPTS / file).read_text().splitlines()]
        again = [{**row, "id": f"{row['id']}/{n}"} for n in range(2) for row in rows]
        (place.folder / file).write_text("".join(json.dumps(row) + "\n" for row in again))


def until_still(counter: DecodeCounter) -> None:
    """Wait until the engine's counter has stood for a second."""
    deadline, since, value = time.monotonic() + 60, time.monotonic(), counter.total
    while time.monotonic() - since < 1.0:
        assert time.monotonic() < deadline, "the engine's counter never stands still"
        if counter.total != value:
            since, value = time.monotonic(), counter.total
        time.sleep(0.05)


def decode_steps(answer: Document) -> int:
    """What an answer took: the first token of each request comes from its prefill."""
    segments = answer.get("segments") or [{"n": len(answer["output_ids"])}]
    return sum(segment["n"] - 1 for segment in segments)


def kept_tokens(folder: Path) -> int:
    """New tokens of all partials: a later one of a row holds those of the earlier ones too."""
    file = folder / "partials.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return sum(json.loads(line)["segments"][-1]["n"] for line in lines)
