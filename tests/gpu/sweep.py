"""Stage `sweep`: AUTO and fixed slots in turn, each a run of its own over the same prompts.

Every arm begins on an empty server with an empty cache, so its cold start is counted. `--phases`
names the arms in order, `[DRAW:]SLOTS[+]`: arms of one draw send the same rows in the same order;
`+` also times the drain after that arm.
"""

import gzip
import json
import time
import urllib.request
from dataclasses import dataclass, replace
from typing import Any

from tests.gpu.job import Job
from tests.gpu.load import read_requests, write_run, write_run_file
from tests.gpu.measure import Measurement
from tests.gpu.phases import figures

ROWS = 1800
DRAIN_WITHIN_S = 150.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One entry of `--phases`."""

    draw: int
    slots: str
    is_drained: bool

    @property
    def inputs(self) -> str:
        """Return the name of its prompts."""
        return f"sweep{self.draw}"


def read_arm(spec: str) -> Arm:
    """Read `[DRAW:]SLOTS[+]`."""
    draw, _, slots = spec.rpartition(":")
    return Arm(int(draw or 0), slots.removesuffix("+"), slots.endswith("+"))


def sweep(job: Job) -> None:
    """Run every arm for which there is time; figures of each, whole and after settling."""
    planned = [read_arm(spec) for spec in job.plan.phases]
    for arm in planned:
        if not (job.plan.work / f"{arm.inputs}.toml").exists():
            write_run(job.plan.work, arm.inputs, ROWS, replace(job.plan.load, draw=arm.draw))
    url = job.server()["url"]
    state = ["--state-dir", str(job.kvctl.state)]
    watch = [*job.kvctl.command, *state, "watch", "--json", "--interval", "1"]
    measurement = Measurement(url, watch)
    measurement.start()
    arms = [seen for number, arm in enumerate(planned, 1) if (seen := _arm(job, number, arm))]
    measurement.stop()
    measurement.save(job.plan.out / "sweep-samples.jsonl.gz")
    job.seen["arms"] = [_summary(job, measurement, arm) for arm in arms]
    for row in job.seen["arms"]:
        job.kvctl.note(json.dumps(row))
    job.save()


def _arm(job: Job, number: int, arm: Arm) -> dict[str, Any] | None:
    plan, kvctl = job.plan, job.kvctl
    if time.monotonic() + plan.phase_s + 10 + arm.is_drained * 70 > plan.ends_at:
        kvctl.note(f"no time left for arm {number}: {arm}")
        return None
    name = f"{arm.inputs}-{int(time.time())}-{arm.slots}"
    path = write_run_file(plan.work, name, arm.inputs, arm.slots, plan.load)
    _empty(job)
    with job.act(f"arm {number}: {arm}") as found:
        kvctl.call("run", "start", str(path))
        began = time.time()
        time.sleep(plan.phase_s)  # the arm itself is what is measured
        ended = time.time()
        found["drain_s"] = _drain(job) if arm.is_drained else None
        kvctl.call("run", "pause", "--how", "harvest", expect=None)
        kvctl.call("run", "close", expect=None)
        span = {"began": began, "ended": ended}
        return {"slots": arm.slots, "draw": arm.draw, "name": name, **span, **found}
    return None


def _empty(job: Job) -> None:
    """Wait until nothing runs or waits, and drop the prefix cache."""

    def is_idle(status: dict[str, Any]) -> bool:
        server = (status["servers"] or [{}])[0]
        return not server.get("running", 1) and not server.get("queued", 1)

    job.kvctl.wait("the server is empty", is_idle, 60)
    request = urllib.request.Request(f"{job.server()['url']}/flush_cache", b"")
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def _drain(job: Job) -> float:
    """Send nothing more; return the seconds until nothing is in flight."""
    job.kvctl.call("run", "pause")
    return job.kvctl.wait("drained", lambda s: not s["run"]["in_flight"], DRAIN_WITHIN_S)[0]


def _summary(job: Job, measurement: Measurement, arm: dict[str, Any]) -> dict[str, Any]:
    requests = read_requests(job.plan.work / f"out-{arm['name']}")
    with gzip.open(job.plan.out / f"{arm['name']}.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in requests)
    began, ended = arm["began"], arm["ended"]
    return arm | {
        "steady": figures(measurement, requests, began + job.plan.settle_s, ended),
        "whole": figures(measurement, requests, began, ended),
    }
