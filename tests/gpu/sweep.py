"""Stage `sweep`: AUTO and fixed slots in turn, each a run of its own over the same prompts.

Every arm begins on an empty server with an empty cache, so its cold start is counted. `--phases`
names the arms in order; `120+` also times the drain after that arm.
"""

import gzip
import json
import time
import urllib.request
from typing import Any

from tests.gpu.job import Job
from tests.gpu.load import read_requests, write_run, write_run_file
from tests.gpu.measure import Measurement
from tests.gpu.phases import MOST_ROWS, figures

INPUTS = "sweep"
DRAIN_WITHIN_S = 150.0


def sweep(job: Job) -> None:
    """Run every arm for which there is time; figures of each, whole and after settling."""
    if not (job.plan.work / f"{INPUTS}.toml").exists():
        write_run(job.plan.work, INPUTS, MOST_ROWS, job.plan.load)
    url = job.server()["url"]
    state = ["--state-dir", str(job.kvctl.state)]
    watch = [*job.kvctl.command, *state, "watch", "--json", "--interval", "1"]
    measurement = Measurement(url, watch)
    measurement.start()
    arms = [arm for number, spec in enumerate(job.plan.phases) if (arm := _arm(job, number, spec))]
    measurement.stop()
    measurement.save(job.plan.out / "sweep-samples.jsonl.gz")
    job.seen["arms"] = [_summary(job, measurement, arm) for arm in arms]
    for row in job.seen["arms"]:
        job.kvctl.note(json.dumps(row))
    job.save()


def _arm(job: Job, number: int, spec: str) -> dict[str, Any] | None:
    plan, kvctl = job.plan, job.kvctl
    slots, is_drained = spec.removesuffix("+"), spec.endswith("+")
    if time.monotonic() + plan.phase_s + 10 + is_drained * 70 > plan.ends_at:
        kvctl.note(f"no time left for arm {number + 1}: {spec}")
        return None
    name = f"{INPUTS}-{int(time.time())}-{slots}"
    path = write_run_file(plan.work, name, INPUTS, slots, plan.load)
    _empty(job)
    with job.act(f"arm {number + 1}: {spec}") as found:
        kvctl.call("run", "start", str(path))
        began = time.time()
        time.sleep(plan.phase_s)  # the arm itself is what is measured
        ended = time.time()
        found["drain_s"] = _drain(job) if is_drained else None
        kvctl.call("run", "pause", "--how", "harvest", expect=None)
        kvctl.call("run", "close", expect=None)
        return {"slots": slots, "name": name, "began": began, "ended": ended, **found}
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
