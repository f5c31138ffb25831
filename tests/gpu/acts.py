"""Stages `acts` and `finish`: what an operator does to a run that goes on, and the count of it."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from typing import Any

from tests.gpu.gpu_facts import read_driver
from tests.gpu.job import Job, is_alive
from tests.gpu.load import read_requests, write_run
from tests.gpu.measure import scrape

NAME = "acts"
SERVING_WITHIN_S = 60.0
GPU_FREE_MIB = 2048
FREE_WITHIN_S = 12.0


def acts(job: Job) -> None:
    """Start a run and do everything to it."""
    kvctl, plan = job.kvctl, job.plan
    with job.act("run start"):
        kvctl.call("run", "close", expect=None)
        shutil.rmtree(plan.work / f"out-{NAME}", ignore_errors=True)  # of an earlier call
        path = write_run(plan.work, NAME, plan.rows, plan.load)
        kvctl.call("run", "start", str(path))
        _serving(job)
        time.sleep(plan.look_s)
    for name, act in (
        ("pause", _pause),
        ("freeze", _freeze),
        ("harvest", _harvest),
        ("refused restart", _refused),
        ("restart", _restart),
        ("kill kvctld", _kill_kvctld),
        ("kill the server", _kill_server),
    ):
        with job.act(name) as found:
            act(job, found)
            kvctl.call("run", "throttle", "auto")


def finish(job: Job) -> None:
    """Let the run end, count, stop the server and kvctld."""
    kvctl = job.kvctl
    with job.act("the end") as found:
        found["to_the_end_s"], _ = kvctl.wait(
            "the run is finished", lambda s: s["run"]["state"] == "finished", 240
        )
        _count(job, found)
    with job.act("stop") as found:
        said = kvctl.call("server", "stop", "--yes")
        found["said"] = said.text[-500:]
        _check_clean(job, "the GPU is clean after the stop, while kvctld runs")
        document = kvctl.read("status")
        found["events"] = [(e["wall"], e["kind"], e["text"]) for e in document["events"]]
        kvctl.call("daemon", "stop")


def _serving(job: Job) -> float:
    """Wait until kvctl itself shows that tokens come again; return the seconds."""

    def is_so(status: dict[str, Any]) -> object:
        server = (status["servers"] or [{}])[0]
        rate = server.get("generation_tokens_per_s")
        return server.get("state") == "decoding" and rate and status["run"]["state"] == "running"

    return job.kvctl.wait("the run is served", is_so, SERVING_WITHIN_S)[0]


def _pause(job: Job, found: dict[str, Any]) -> None:
    before = job.kvctl.read("status")
    said = job.kvctl.call("run", "pause")
    time.sleep(job.plan.look_s / 2)
    after = job.kvctl.read("status")
    flight = [s["run"]["in_flight"] for s in (before, after)]
    found |= {"said": said.text, "in_flight": flight, "state": after["run"]["state"]}
    job.check("paused: nothing new is sent", flight[1] < flight[0], flight)
    job.check("the run says that it is paused", after["run"]["state"] == "paused")
    job.kvctl.call("run", "resume")
    found["serving_after_s"] = _serving(job)
    time.sleep(job.plan.look_s / 2)


def _freeze(job: Job, found: dict[str, Any]) -> None:
    url = job.server()["url"]
    said = job.kvctl.call("run", "pause", "--how", "freeze")
    time.sleep(1)
    first = scrape(url)
    time.sleep(4)
    second, shown = scrape(url), job.server()
    made = second["decoded"] - first["decoded"]
    found |= {"said": said.text, "tokens_while_frozen": made, "shown": shown["state"]}
    found |= {"frozen": shown["frozen"], "running_shown": shown["running"]}
    job.check("frozen: the engine makes no token", made == 0, made)
    job.check("kvctl shows the engine as paused", shown["state"] == "paused", shown["state"])
    job.kvctl.call("run", "resume")
    found["serving_after_s"] = _serving(job)
    time.sleep(job.plan.look_s / 2)


def _harvest(job: Job, found: dict[str, Any]) -> None:
    before = job.kvctl.read("status")["run"]
    said = job.kvctl.call("run", "pause", "--how", "harvest")
    time.sleep(3)
    after = job.kvctl.read("status")
    found |= {"said": said.text, "in_flight_before": before["in_flight"]}
    kept = {name: after["run"][name] for name in ("in_flight", "partials", "partial_tokens")}
    found |= {"kept": kept, "server_running": after["servers"][0]["running"]}
    job.check("harvested: nothing is in flight", kept["in_flight"] == 0, kept)
    job.check("partial answers are kept", kept["partials"], kept)
    job.kvctl.call("run", "resume")
    found["serving_after_s"] = _serving(job)
    time.sleep(job.plan.look_s / 2)


def _refused(job: Job, found: dict[str, Any]) -> None:
    before = job.server()
    said = job.kvctl.call("server", "restart", job.plan.denied, "--yes", expect=None)
    after = job.kvctl.read("status")
    found |= {"status": said.status, "said": said.text}
    job.check("the rule refuses the restart (status 4)", said.status == 4, said.text[-300:])
    same = before["pid"] == after["servers"][0]["pid"] and is_alive(before["pid"])
    job.check("nothing was touched", same and after["run"]["state"] == "running", before["pid"])


def _restart(job: Job, found: dict[str, Any]) -> None:
    before = job.server()
    started = time.monotonic()
    said = job.kvctl.call("server", "restart", job.plan.preset, "--yes", within_s=400)
    after = job.server()
    found |= {"said": said.text[-2500:], "pids": [before["pid"], after["pid"]]}
    found["ready_after_s"] = after["ready_after_s"]
    _serving(job)
    found["served_again_s"] = round(time.monotonic() - started, 1)
    job.check(
        "another process serves", before["pid"] != after["pid"] and not is_alive(before["pid"])
    )
    time.sleep(job.plan.look_s)


def _kill_kvctld(job: Job, found: dict[str, Any]) -> None:
    before, pid = job.kvctl.read("status"), job.kvctld_pid()
    os.kill(pid, signal.SIGKILL)
    time.sleep(2)
    started = time.monotonic()
    job.kvctl.call("status")
    found["first_answer_s"] = round(time.monotonic() - started, 2)
    found["serving_after_s"] = _serving(job)
    after = job.kvctl.read("status")
    found["pids"] = [pid, job.kvctld_pid()]
    job.check("another kvctld answers", found["pids"][0] != found["pids"][1], found["pids"])
    server = [s["servers"][0]["pid"] for s in (before, after)]
    job.check("the same server is looked after", server[0] == server[1], server)
    done = [s["run"]["done"] for s in (before, after)]
    job.check("the run is taken up where it was", done[1] >= done[0], done)
    job.check("the server is still kvctl's own", after["servers"][0]["managed"])
    time.sleep(job.plan.look_s)


def _kill_server(job: Job, found: dict[str, Any]) -> None:
    before = job.server()
    os.kill(before["pid"], signal.SIGKILL)
    found["detected_s"], status = job.kvctl.wait(
        "the death of the server is shown", lambda s: s["servers"][0]["state"] == "failed", 60
    )
    failure = status["servers"][0]["failure"]
    found |= {"failure": failure, "run": [status["run"]["state"], status["run"]["reason"]]}
    reason = status["servers"][0]["state_reason"]
    job.check("the failure is told", failure or reason, [failure, reason])
    job.kvctl.call("status")
    _watch_memory(job, found)
    started = time.monotonic()
    said = job.kvctl.call("server", "start", job.plan.preset, expect=None, within_s=400)
    found["said"] = said.text[-2500:]
    job.check("the server is started again", said.status == 0, said.text[-300:])
    _serving(job)
    found["served_again_s"] = round(time.monotonic() - started, 1)
    job.check("the killed process is gone", not is_alive(before["pid"]))


def _watch_memory(job: Job, found: dict[str, Any]) -> None:
    """Follow what the dead server holds, by kvctl and by the driver, until nothing is held."""
    started, rows = time.monotonic(), []
    while time.monotonic() - started < FREE_WITHIN_S:
        driver, document = read_driver(), job.kvctl.read("gpus")
        if driver is None:
            return
        held = [(p["pid"], p["kind"]) for d in document["devices"] for p in d["processes"]]
        used = sum(d["memory_used_bytes"] or 0 for d in document["devices"]) // (1 << 20)
        after_s = round(time.monotonic() - started, 1)
        rows.append([after_s, used, held, driver.used_mib, list(driver.processes)])
        if not held and not driver.processes and max(used, driver.used_mib) < GPU_FREE_MIB:
            break
        time.sleep(0.5)
    found["memory_after_the_kill"] = rows
    job.check("the dead server's memory is back", rows and not rows[-1][4], rows[-1:])


def _count(job: Job, found: dict[str, Any]) -> None:
    """Ask kvctl, then count again with json alone."""
    job.kvctl.call("run", "verify", expect=None)
    report = job.kvctl.read("run", "verify")
    found["verify"] = {name: report[name] for name in ("exact", "total", "done", "tokens")}
    wanted: dict[tuple[str, str], int] = {}
    for path in job.plan.work.glob(f"{NAME}-B*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            key = (path.stem.removeprefix(f"{NAME}-"), row["id"])
            wanted[key] = row["sampling_params"]["max_new_tokens"]
    answers = read_requests(job.plan.work / f"out-{NAME}")
    times = Counter((str(a["partition"]), str(a["id"])) for a in answers)
    lengths = {(str(a["partition"]), str(a["id"])): a["counted"] for a in answers}
    found |= {
        "rows": len(wanted),
        "answers": len(answers),
        "twice": sum(times.values()) - len(times),
    }
    found["wrong_length"] = sum(1 for key in wanted if lengths.get(key) != wanted[key])
    found["tokens"] = sum(int(str(a["counted"])) for a in answers)
    found["continued"] = sum(1 for a in answers if int(str(a["segments"])) > 1)
    job.check("kvctl says exactly once", report["exact"], found["verify"])
    once = times == Counter(wanted.keys())
    job.check("an independent count says exactly once", once, [len(wanted), len(answers)])
    job.check(
        "every answer has exactly its length", not found["wrong_length"], found["wrong_length"]
    )


def _check_clean(job: Job, claim: str) -> None:
    driver = read_driver()
    if driver is not None:
        is_clean = not driver.processes and driver.used_mib < GPU_FREE_MIB
        job.check(claim, is_clean, [driver.used_mib, driver.processes])
