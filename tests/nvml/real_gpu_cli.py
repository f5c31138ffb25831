"""On a real GPU, through the installed kvctl: 40 GB of an orphan found, killed, proven clean.

Every figure is read beside nvidia-smi, idle and under load. Usage: real_gpu_cli.py KVCTL STATE.
Needs a driver and nvidia-smi; nothing of SGLang. Prints one JSON document.
"""

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

HELD_BYTES = 40 * 10**9
FIELDS = (
    "uuid,name,pci.bus_id,memory.used,memory.total,memory.reserved,utilization.gpu,temperature.gpu"
    ",power.draw,power.limit,clocks.sm,clocks.mem,ecc.errors.uncorrected.volatile.total"
)
HOLDER = textwrap.dedent(
    """
    import ctypes, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    size = int(sys.argv[1])
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
    print("held", flush=True)
    while True:  # writing all of it again and again keeps the GPU busy
        assert cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(size)) == 0
        assert cuda.cuCtxSynchronize() == 0
    """
)
PARENT = textwrap.dedent(
    """
    import subprocess, sys
    child = subprocess.Popen(["sglang::scheduler_TP0", "-c", *sys.argv[2:]],
                             executable=sys.argv[1], stdout=subprocess.PIPE, text=True)
    print(child.pid, child.stdout.readline().strip(), flush=True)
    sys.stdin.read()
    """
)


def smi(what: str, fields: str) -> list[list[str]]:
    """What nvidia-smi says, without units."""
    words = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [[cell.strip() for cell in line.split(",")] for line in out.splitlines()]


class Kvctl:
    """The installed kvctl."""

    def __init__(self, command: str, state: Path) -> None:
        self._words = [command, "--state-dir", str(state)]

    def __call__(self, *words: str) -> dict[str, Any]:
        began = time.monotonic()
        done = subprocess.run(
            [*self._words, *words], capture_output=True, text=True, check=False, timeout=120
        )
        took = time.monotonic() - began
        return {"status": done.returncode, "text": done.stdout + done.stderr, "took_s": took}

    def json(self, *words: str) -> dict[str, Any]:
        said = self(*words, "--json")
        assert said["status"] == 0, said
        found: dict[str, Any] = json.loads(said["text"])
        return found


def beside(kvctl: Kvctl) -> dict[str, Any]:
    """One moment as kvctld has it and as nvidia-smi has it just after."""
    return {"kvctl": kvctl.json("gpus"), "smi": smi("gpu", FIELDS)}


def rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for device in document["devices"] for row in device["processes"]]


def until(kvctl: Kvctl, kind: str) -> dict[str, Any]:
    """The first picture in which a process of this kind holds memory."""
    for _ in range(40):
        document = kvctl.json("gpus")
        if any(row["kind"] == kind for row in rows(document)):
            return document
        time.sleep(0.25)
    raise AssertionError(f"no {kind} was seen: {document}")


def main() -> None:
    kvctl = Kvctl(sys.argv[1], Path(sys.argv[2]))
    out: dict[str, Any] = {"first": kvctl.json("gpus")["problem"]}
    time.sleep(3)
    out["idle"] = beside(kvctl)
    parent = subprocess.Popen(
        ["python -m sglang.launch_server", "-c", PARENT, sys.executable, HOLDER, str(HELD_BYTES)],
        executable=sys.executable,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    out["holder"] = parent.stdout.readline().split()
    out["living"] = rows(until(kvctl, "other_sglang"))
    parent.kill()
    parent.wait()
    began = time.monotonic()
    out["orphan"] = rows(until(kvctl, "leftover"))
    out["found_s"] = time.monotonic() - began
    time.sleep(4)
    out["busy"] = []
    for _ in range(5):
        out["busy"].append(beside(kvctl))
        time.sleep(1)
    out["apps"] = smi("compute-apps", "pid,used_memory")
    out["kvctld"] = kvctl.json("daemon", "status")["pid"]
    out["kill"] = kvctl("kill", "--leftovers", "--yes", "--wait", "1")
    out["apps_after"] = smi("compute-apps", "pid,used_memory")
    time.sleep(6)
    out["after"] = beside(kvctl)
    out["text"] = kvctl("gpus")["text"]
    kvctl("daemon", "stop")
    print(json.dumps(out))


main()
