"""Moments on several GPUs, as kvctl and as nvidia-smi have them, and processes that hold memory."""

import csv
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.job import Job

MIB = 1 << 20
KEPT = ("pid", "memory_bytes", "kind", "title", "rank", "server", "driver_listed", "evidence")
SERVER = (
    *("name", "state", "state_reason", "pid", "preset", "tp_size", "dp_size", "failure"),
    *("running", "queued", "token_usage", "pool_tokens", "generation_tokens_per_s"),
)
HOLDER = textwrap.dedent(
    """
    import ctypes, signal, sys, time
    if sys.argv[2] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1]))) == 0
    print("held", flush=True)
    time.sleep(600)
    """
)
PARENT = textwrap.dedent(
    """
    import os, subprocess, sys
    for gpu, ear in enumerate(("hears", "deaf")):
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
        words = [f"sglang::scheduler_TP{gpu}", "-c", *sys.argv[2:], ear]
        child = subprocess.Popen(words, executable=sys.argv[1], env=environ,
                                 stdout=subprocess.PIPE, text=True)
        print(child.pid, child.stdout.readline().strip(), flush=True)
    sys.stdin.read()
    """
)


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU as nvidia-smi has it."""

    index: int
    uuid: str
    used_mib: int
    processes: dict[int, int]
    """Pid -> MiB."""


def read_cards() -> list[Card]:
    """Ask nvidia-smi for each GPU; empty on a host without one."""
    if shutil.which("nvidia-smi") is None:
        return []
    cards = _query("--query-gpu=index,uuid,memory.used")
    apps = _query("--query-compute-apps=gpu_uuid,pid,used_memory")
    return [
        Card(int(index), uuid, int(used), {int(p): int(m) for u, p, m in apps if u == uuid})
        for index, uuid, used in cards
    ]


def _query(what: str) -> list[list[str]]:
    words = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]


def moment(job: Job, label: str, began: float) -> dict[str, Any]:
    """Take one moment, write it to moments.jsonl and return it."""
    gpus, status, cards = job.kvctl.read("gpus"), job.kvctl.read("status"), read_cards()
    taken = {
        "label": label,
        "after_s": round(time.monotonic() - began, 2),
        "servers": [{name: s.get(name) for name in SERVER} for s in status["servers"]],
        "devices": [_thin(device) for device in gpus["devices"]],
        "leftovers_off_gpu": [(p["pid"], p["title"]) for p in gpus["leftovers_off_gpu"]],
        "smi": [(c.index, c.uuid, c.used_mib, c.processes) for c in cards],
    }
    with (job.plan.out / "moments.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(taken) + "\n")
    return taken


def _thin(device: dict[str, Any]) -> dict[str, Any]:
    kept = {name: device[name] for name in ("index", "uuid", "problem", "clean")}
    kept["used_mib"] = (device["memory_used_bytes"] or 0) // MIB
    processes = [{name: p[name] for name in KEPT} for p in device["processes"]]
    return kept | {"processes": processes}


def is_empty(taken: dict[str, Any]) -> bool:
    """Whether neither side sees a holder and kvctl calls every GPU clean."""
    proven = all((device["clean"] or {}).get("is_clean") for device in taken["devices"])
    return proven and not held(taken) and not any(card[3] for card in taken["smi"])


def held(taken: dict[str, Any]) -> list[tuple[int, int, str, str | None, int]]:
    """Return (GPU, pid, kind, rank, MiB) of all that hold memory."""
    return [
        (d["index"], p["pid"], p["kind"], p["rank"], p["memory_bytes"] // MIB)
        for d in taken["devices"]
        for p in d["processes"]
        if p["memory_bytes"]
    ]


def hold(gpu: int, size: int) -> "subprocess.Popen[str]":
    """Start a process foreign to kvctl that holds so many bytes of a GPU."""
    return _spawn(
        [sys.executable, "-c", HOLDER, str(size), "hears"], {"CUDA_VISIBLE_DEVICES": str(gpu)}
    )


def plant_server(size: int) -> "tuple[subprocess.Popen[str], list[int]]":
    """Start a false server with a scheduler on each of two GPUs; the second ignores TERM."""
    words = ["python -m sglang.launch_server", "-c", PARENT, sys.executable, HOLDER, str(size)]
    popen = _spawn(words, {})
    assert popen.stdout is not None
    return popen, [int(popen.stdout.readline().split()[0]) for _ in range(2)]


def _spawn(words: Sequence[str], more: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        words,
        executable=sys.executable,
        env={**os.environ, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def capture_panel(job: Job, name: str) -> str | None:
    """Return the panel's first screen as text, once it shows a rank; None without pyte."""
    try:
        from tests.e2e.terminal import Terminal
    except ImportError:
        return None
    command: list[str | Path] = [*job.kvctl.command, "--state-dir", str(job.kvctl.state)]
    with Terminal(command, columns=150, rows=46) as terminal:
        try:
            terminal.wait_for("TP1|DP1", 12)
            drawn_at = time.monotonic() + 1.5  # the rest of that frame and the next one
            terminal.wait_until(lambda: time.monotonic() > drawn_at, "the whole frame", 5)
        finally:
            (job.plan.out / f"panel-{name}.txt").write_text(terminal.text, encoding="utf-8")
    return f"panel-{name}.txt"
