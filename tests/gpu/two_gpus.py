"""kvctl on two GPUs: `python -m tests.gpu.two_gpus --work DIR --out DIR [--within-s S]`.

Ranks on their GPUs, a killed scheduler, a killed launcher in service and in start-up, orphans on
both GPUs, one GPU by UUID beside a busy one, two replicas. Each act writes its report when it ends;
an act for which no time is left is not begun. $KVCTL is the command. README.md says how.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu import gpu_moments as gm
from tests.gpu.job import Job, Plan, is_alive, open_job
from tests.gpu.load import Load
from tests.gpu.starting import write_config

START_WITHIN_S = 200.0
CLEAN_WITHIN_S = 20.0
HELD_BYTES = 30 * 10**9
FOREIGN_BYTES = 2 * 10**9
ONE, OTHER = "h200-gpu-1-by-uuid", "h200-gpu-0-by-uuid"


class Traffic:
    """Requests in flight all the time, so that a server is serving when it is killed."""

    def __init__(self, url: str, threads: int = 12) -> None:
        self._ended = threading.Event()
        self._url = f"{url}/generate"
        for _ in range(threads):
            threading.Thread(target=self._ask, daemon=True).start()

    def stop(self) -> None:
        """Send no more."""
        self._ended.set()

    def _ask(self) -> None:
        sampling = {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 0}
        body = json.dumps({"input_ids": list(range(20, 120)), "sampling_params": sampling}).encode()
        head = {"Content-Type": "application/json"}
        while not self._ended.is_set():
            try:
                request = urllib.request.Request(self._url, body, head)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
            except (OSError, urllib.error.URLError, ValueError):
                self._ended.wait(0.5)


def serve(job: Job, found: dict[str, Any], preset: str) -> Traffic:
    """Start a preset, put it under load and wait until kvctl shows tokens."""
    said = job.kvctl.call("server", "start", preset, within_s=START_WITHIN_S)
    server = job.server()
    found |= {"start_took_s": round(said.took_s, 1), "ready_after_s": server["ready_after_s"]}
    found["stages"] = [(s["name"], s["state"], s["took_s"]) for s in server["stages"]]
    traffic = Traffic(server["url"])
    job.kvctl.wait(
        "tokens come", lambda s: (s["servers"] or [{}])[0].get("generation_tokens_per_s"), 25
    )
    time.sleep(2)  # one more poll of the GPUs
    return traffic


def check_ranks(job: Job, found: dict[str, Any], label: str, ranks: dict[int, str]) -> None:
    """Hold every rank, its GPU and its memory against nvidia-smi."""
    taken = gm.moment(job, label, time.monotonic())
    found["held"] = gm.held(taken)
    seen = {gpu: rank for gpu, _, kind, rank, _ in found["held"] if kind == "rank"}
    job.check(f"{label}: each rank on its GPU", seen == ranks, seen)
    for device, (index, uuid, used, processes) in zip(taken["devices"], taken["smi"], strict=True):
        shown = {
            p["pid"]: p["memory_bytes"] // gm.MIB for p in device["processes"] if p["memory_bytes"]
        }
        same = shown.keys() == processes.keys() and all(
            abs(shown[pid] - processes[pid]) <= 16 for pid in shown
        )
        job.check(f"{label}: GPU {index} as nvidia-smi says", same, [shown, processes])
        close = device["uuid"] == uuid and abs(device["used_mib"] - used) <= 64
        job.check(f"{label}: GPU {index} memory used", close, [device["used_mib"], used])
    kvctld = job.kvctld_pid()
    on_gpu = [card[0] for card in taken["smi"] if kvctld in card[3]]
    job.check(f"{label}: kvctld is on no GPU", not on_gpu, on_gpu)


def follow(job: Job, label: str, began: float) -> list[dict[str, Any]]:
    """Take moments until both sides say that nothing is held."""
    rows: list[dict[str, object]] = []
    while not rows or time.monotonic() - began < CLEAN_WITHIN_S:
        rows.append(gm.moment(job, label, began))
        if gm.is_empty(rows[-1]):
            break
        time.sleep(0.2)
    return rows


def kill_and_clear(job: Job, found: dict[str, Any], label: str, pid: int) -> None:
    """kill -9 one process of the server; what is left, cleared, proven clean."""
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    found["killed"] = pid
    rows = [gm.moment(job, label, began)]
    said = job.kvctl.call("gpus")
    found["gpus_text"] = said.text
    rows += follow(job, label, began)
    failed = next((r for r in rows if r["servers"] and r["servers"][0]["state"] == "failed"), None)
    if failed is None:
        job.kvctl.wait("the failure", lambda s: s["servers"][0]["state"] == "failed", 15)
        failed = gm.moment(job, label, began)
    found["failed_after_s"] = failed["after_s"]
    found["failure"] = failed["servers"][0]["failure"]
    found["state_reason"] = failed["servers"][0]["state_reason"]
    found["left"] = [(r["after_s"], gm.held(r), r["leftovers_off_gpu"]) for r in rows]
    job.kvctl.call("status", expect=None)
    cleared = job.kvctl.call("kill", "--leftovers", "--yes", "--wait", "3", expect=None)
    found["cleared"] = [cleared.status, cleared.text]
    found["clear_took_s"] = round(cleared.took_s, 1)
    rows = follow(job, f"{label}, cleared", time.monotonic())
    found["proof"] = [(d["index"], d["used_mib"], d["clean"]) for d in rows[-1]["devices"]]
    found["clean_after_s"] = round(time.monotonic() - began, 1)
    job.check(f"{label}: every GPU is proven clean", gm.is_empty(rows[-1]), gm.held(rows[-1]))
    shown = found["failure"] or found["state_reason"]
    job.check(f"{label}: the server's failure is shown", shown, shown)


def ranks(job: Job, found: dict[str, Any]) -> None:
    """Start over both GPUs, look, then kill -9 one scheduler."""
    traffic = serve(job, found, "h200-tp2")
    check_ranks(job, found, "tp 2", {0: "TP0", 1: "TP1"})
    found["panel"] = gm.capture_panel(job, "tp2")
    found["gpus_before"] = job.kvctl.call("gpus").text
    pid = next(p for _, p, kind, rank, _ in found["held"] if kind == "rank" and rank == "TP1")
    kill_and_clear(job, found, "a scheduler killed", pid)
    traffic.stop()


def launcher(job: Job, found: dict[str, Any]) -> None:
    """Start again; kill -9 the launcher while it serves."""
    traffic = serve(job, found, "h200-tp2")
    kill_and_clear(job, found, "the launcher killed", job.server()["pid"])
    traffic.stop()


def starting_up(job: Job, found: dict[str, Any]) -> None:
    """kill -9 the launcher once both schedulers hold memory, before it serves."""
    words = [*job.kvctl.command, "--state-dir", str(job.kvctl.state), "server", "start", "h200-tp2"]
    start = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    began = time.monotonic()
    while True:
        taken = gm.moment(job, "start-up", began)
        if len({gpu for gpu, _, _, _, memory in gm.held(taken) if memory > 300}) == 2:
            break
        if time.monotonic() - began > 90 or start.poll() is not None:
            raise AssertionError(f"no two schedulers were seen: {gm.held(taken)}")
        time.sleep(0.2)
    found["state_at_the_kill"] = taken["servers"][0]["state"]
    found["held_at_the_kill"] = gm.held(taken)
    kill_and_clear(job, found, "the launcher killed in start-up", taken["servers"][0]["pid"])
    found["start_said"] = start.communicate(timeout=15)[0][-2500:]
    found["start_status"] = start.returncode


def orphans(job: Job, found: dict[str, Any]) -> None:
    """Two orphans with memory on both GPUs, one deaf to TERM: what `kill --leftovers` is for."""
    parent, pids = gm.plant_server(HELD_BYTES)
    parent.kill()
    parent.wait()
    began = time.monotonic()
    rows = []
    while time.monotonic() - began < 8:
        rows.append(gm.moment(job, "orphans", began))
        if {pid for _, pid, kind, _, _ in gm.held(rows[-1]) if kind == "leftover"} == set(pids):
            break
    found |= {"pids": pids, "found": [(r["after_s"], gm.held(r)) for r in rows]}
    found["gpus_text"] = job.kvctl.call("gpus").text
    refused = job.kvctl.call("server", "start", "h200-tp2", expect=None, within_s=20)
    found["start_refused"] = [refused.status, refused.text]
    job.check("a start over leftovers is refused", refused.status, refused.text[-500:])
    cleared = job.kvctl.call("kill", "--leftovers", "--yes", "--wait", "2", expect=None)
    found["cleared"] = [cleared.status, cleared.text, round(cleared.took_s, 1)]
    rows = follow(job, "orphans, cleared", time.monotonic())
    found["proof"] = [(d["index"], d["used_mib"], d["clean"]) for d in rows[-1]["devices"]]
    job.check("the orphans are gone from both GPUs", gm.is_empty(rows[-1]), gm.held(rows[-1]))
    job.check("no orphan lives", not any(map(is_alive, pids)), pids)


def write_one(job: Job, name: str, gpu: int) -> None:
    """Write a preset for a single GPU, named by its UUID."""
    uuid = job.kvctl.read("gpus")["devices"][gpu]["uuid"]
    preset = f'extends = "h200-tp2"\n[launch]\ngpus = ["{uuid}"]\n[flags]\ntp-size = 1\n'
    path = job.kvctl.state / "config" / "presets" / f"{name}.toml"
    path.write_text(f'description = "GPU {gpu} by its UUID"\n{preset}', encoding="utf-8")


def ranks_on(job: Job, found: dict[str, Any], label: str) -> set[int]:
    """Return the GPUs that hold ranks now."""
    found[label] = gm.held(gm.moment(job, label, time.monotonic()))
    return {gpu for gpu, _, kind, _, _ in found[label] if kind == "rank"}


def beside_another(job: Job, found: dict[str, Any]) -> None:
    """A foreign process on GPU 0: GPU 1 is taken by its UUID, and GPU 0 once it is free."""
    write_one(job, ONE, 1)
    write_one(job, OTHER, 0)
    foreign = gm.hold(0, FOREIGN_BYTES)
    assert foreign.stdout is not None
    foreign.stdout.readline()
    time.sleep(2)
    try:
        refused = job.kvctl.call("server", "start", "h200-tp2", expect=None, within_s=20)
        found["refused"] = [refused.status, refused.text, foreign.pid]
        names = "GPU 0" in refused.text and str(foreign.pid) in refused.text
        job.check(
            "two GPUs are refused, the busy one named", refused.status and names, refused.text
        )
        traffic = serve(job, found, ONE)
        where = ranks_on(job, found, "one by UUID")
        job.check("the server is on GPU 1 only", where == {1}, where)
        refuse_restart(job, found, foreign.pid)
        job.check("the foreign process lives", is_alive(foreign.pid), foreign.pid)
    finally:
        foreign.kill()
        foreign.wait()
    restart_elsewhere(job, found)
    traffic.stop()
    stopped = job.kvctl.call("server", "stop", "--yes", "--cut-foreign", expect=None)
    found["stopped"] = [stopped.status, stopped.text]


def refuse_restart(job: Job, found: dict[str, Any], holder: int) -> None:
    """A restart onto the busy GPU is refused before the old server is touched."""
    before = job.server()["pid"]
    words = ("server", "restart", OTHER, "--yes", "--cut-foreign")
    refused = job.kvctl.call(*words, expect=None, within_s=30)
    found["restart_refused"] = [refused.status, refused.text]
    names = "GPU 0" in refused.text and str(holder) in refused.text
    claim = "a restart onto the busy GPU is refused, the holder named"
    job.check(claim, refused.status and names, refused.text)
    server = job.server()
    same = server["pid"] == before and is_alive(before)
    job.check("the old server was not touched", same, [before, server["pid"], server["state"]])


def restart_elsewhere(job: Job, found: dict[str, Any]) -> None:
    """The same restart once GPU 0 is free: the server moves there, GPU 1 is proven clean."""
    before = job.server()["pid"]
    time.sleep(2)
    words = ("server", "restart", OTHER, "--yes", "--cut-foreign")
    said = job.kvctl.call(*words, expect=None, within_s=START_WITHIN_S)
    found["restarted"] = [said.status, said.text, round(said.took_s, 1)]
    job.kvctl.wait(
        "tokens come again", lambda s: (s["servers"] or [{}])[0].get("generation_tokens_per_s"), 40
    )
    time.sleep(2)
    where = ranks_on(job, found, "after the restart")
    job.check("the restart moved the server to GPU 0", where == {0}, where)
    job.check("the old server is gone", not is_alive(before), before)
    taken = gm.moment(job, "moved", time.monotonic())
    left = taken["smi"][1]
    job.check("GPU 1 is free of it", not left[3] and left[2] < 700, left)
    found["gpus_text"] = job.kvctl.call("gpus").text
    found["panel"] = gm.capture_panel(job, "moved")


def replicas(job: Job, found: dict[str, Any]) -> None:
    """Two replicas: ranks DP0 and DP1, and what /metrics says of each."""
    traffic = serve(job, found, "h200-dp2")
    check_ranks(job, found, "dp 2", {0: "DP0", 1: "DP1"})
    server = job.server()
    with urllib.request.urlopen(f"{server['url']}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    names = ("num_running_reqs{", "max_total_num_tokens{", "gen_throughput{", "token_usage{")
    found["metrics"] = [x for x in lines if x.startswith(tuple(f"sglang:{n}" for n in names))]
    found["server"] = server
    found["panel"] = gm.capture_panel(job, "dp2")
    job.kvctl.call("status", expect=None)
    traffic.stop()
    stopped = job.kvctl.call("server", "stop", "--yes", "--cut-foreign", expect=None)
    found["stopped"] = [stopped.status, stopped.text]


ACTS: dict[str, tuple[float, Callable[[Job, dict[str, Any]], None]]] = {
    "ranks": (60, ranks),
    "launcher": (60, launcher),
    "starting up": (40, starting_up),
    "orphans": (20, orphans),
    "beside another": (130, beside_another),
    "replicas": (60, replicas),
}
"""Name -> the seconds that must be left for it, and the act."""


def main(words: list[str]) -> int:
    """Do the acts in order, as far as the time goes."""
    parser = argparse.ArgumentParser(prog="two_gpus", allow_abbrev=False)
    parser.add_argument("acts", nargs="*", choices=[*ACTS, []], default=[])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--within-s", type=float, default=float("inf"))
    given = parser.parse_args(words)
    ends_at = time.monotonic() + given.within_s
    work, out = given.work.absolute(), given.out.absolute()
    load = Load(200, 400, (20, 60), 128_000)
    plan = Plan(work, out, "h200-tp2", "", "kv-cache-dtype=fp8*", load, (), 0, 0, 0, 0, ends_at)
    job = open_job(plan, "two-gpus")
    write_config(job)
    for preset in ("h200-tp2", "h200-dp2"):
        job.kvctl.call("presets", "validate", preset, expect=None)
    for name in given.acts or ACTS:
        needed, act = ACTS[name]
        if time.monotonic() + needed > ends_at:
            job.check(f"{name}: time was left for it", False, "not run")
            job.save()
            continue
        with job.act(name) as found:
            act(job, found)
        if (job.kvctl.read("status")["servers"] or [{}])[0].get("pid"):
            job.kvctl.call("server", "stop", "--yes", "--cut-foreign", expect=None)
    return 1 if any(not check["holds"] for check in job.checks) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
