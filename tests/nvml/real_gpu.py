"""On a real GPU: find, kill and prove clean 40 GB that a process keeps whose parent has died.

Needs a driver, nvidia-smi and pynvml; nothing of SGLang. Prints one JSON document.
"""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict
from typing import Any

from kvctl.core.clock import RealClock
from kvctl.core.domain.gpus.devices import GpuView, ProcessIdentity
from kvctl.core.domain.gpus.holding import learn_idle, unexplained_bytes
from kvctl.core.probes.gpu_view import GpuViewProbe, read_within
from kvctl.core.probes.nvml import NvmlSource
from kvctl.core.probes.processes import HostProcesses, read_me
from kvctl.core.servers.processes.clean import held_lines, prove_clean
from kvctl.core.servers.processes.ending import end_processes

HELD_BYTES = 40 * 10**9
HOLDER = textwrap.dedent(
    """
    import ctypes, signal, sys, time
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


def figures(view: GpuView) -> list[dict[str, Any]]:
    """The same figures as kvctl has them, in nvidia-smi's units."""
    return [
        {
            "uuid": device.uuid,
            "name": device.name,
            "used": _mib(device.memory_used_bytes.value),
            "total": _mib(device.memory_total_bytes.value),
            "reserved": _mib(device.memory_reserved_bytes.value),
            "temp": device.temperature_c.value,
            "limit": device.power_limit_w.value,
            "minor": device.minor,
        }
        for device in view.devices
    ]


def _mib(value: float | None) -> int | None:
    return None if value is None else int(value) >> 20


async def main() -> None:
    clock, processes, source = RealClock(), HostProcesses(), NvmlSource()
    probe = GpuViewProbe(source, processes, read_me())

    async def read() -> GpuView:
        return await read_within(clock, 20, lambda: probe.read(clock.monotonic(), (), fresh=True))

    out: dict[str, Any] = {"me": asdict(read_me())}
    idle = await read()
    fields = "uuid,name,memory.used,memory.total,memory.reserved,temperature.gpu,power.limit"
    out["idle"] = {"kvctl": figures(idle), "smi": smi("gpu", fields), "held": held_lines(idle)}
    levels = learn_idle({}, idle)
    parent = subprocess.Popen(  # noqa: ASYNC220  its blocking is of no matter here
        ["python -m sglang.launch_server", "-c", PARENT, sys.executable, HOLDER, str(HELD_BYTES)],
        executable=sys.executable,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    out["holder"] = parent.stdout.readline().split()
    out["living"] = held_lines(await read())
    parent.kill()
    parent.wait()
    began = time.monotonic()
    view = await read()
    out["read_s"] = time.monotonic() - began
    out["orphan"] = {
        "kvctl": figures(view),
        "smi": smi("gpu", fields),
        "held": held_lines(view),
        "apps": smi("compute-apps", "pid,used_memory"),
        "unexplained": [unexplained_bytes(d, view.holders) for d in view.devices],
        "reading": asdict(source.read(clock.monotonic())),
        "me_listed": read_me().pid in {h.pid for h in view.holders},
    }
    targets = [
        ProcessIdentity(h.pid, h.start_ticks)
        for h in {h.pid: h for h in view.leftovers}.values()
        if h.start_ticks is not None
    ]
    report = await end_processes(
        processes, clock, targets, first=signal.SIGTERM, wait_s=1, escalate=True
    )
    proof = await prove_clean(read, clock, idle_bytes=levels, gpus=None, timeout_s=60)
    out["ended"], out["proof"], out["is_clean"] = report.lines(), proof.lines(), proof.is_clean
    print(json.dumps(out))


asyncio.run(main())
