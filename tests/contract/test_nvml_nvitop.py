"""nvitop on the same stand-in library agrees on every figure that both show.

Not compared: a device without memory figures, for which nvitop shows the RAM of the host, whatever
the device is.
"""

import json
import subprocess
import sys
from typing import Any

from tests.nvml.host import StandinHost
from tests.nvml.tree import Grove

pytest_plugins = ["tests.nvml.fixtures"]

NVITOP = """
import json
from nvitop import NA, Device
def plain(value):
    return None if value is NA or value == NA else value
print(json.dumps([
    {
        "uuid": d.uuid(), "name": d.name(), "bus_id": d.bus_id(),
        "used": plain(d.memory_used()), "total": plain(d.memory_total()),
        "util": plain(d.gpu_utilization()), "temp": plain(d.temperature()),
        "power": plain(d.power_usage()), "limit": plain(d.power_limit()),
        "sm": plain(d.clock_infos().sm), "mem": plain(d.clock_infos().memory),
        "pids": sorted(d.processes()),
    }
    for d in Device.all()
]))
"""
MINE = """
import json
from kvctl.core.probes.nvml import NvmlSource
def times(figure, by):
    return None if figure.value is None else round(figure.value * by)
print(json.dumps([
    {
        "uuid": d.uuid, "name": d.name, "bus_id": d.bus_id,
        "used": d.memory_used_bytes.value, "total": d.memory_total_bytes.value,
        "util": times(d.utilisation_ratio, 100), "temp": d.temperature_c.value,
        "power": times(d.power_w, 1000), "limit": times(d.power_limit_w, 1000),
        "sm": d.sm_clock_mhz.value, "mem": d.memory_clock_mhz.value,
        "pids": sorted(p.pid for p in d.processes),
    }
    for d in NvmlSource().read(1.0).devices
]))
"""


def nvitop_sees(host: StandinHost) -> list[dict[str, Any]]:
    words = [sys.executable, "-c", NVITOP]
    done = subprocess.run(
        words, env=host.environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_nvitop_agrees_on_every_figure_that_both_show(standin: StandinHost, grove: Grove) -> None:
    one, two = grove.sleeper("sglang::scheduler_TP0"), grove.sleeper("sglang::scheduler_TP1")
    standin.write(
        "count 16",
        f"hold 0 {one.pid} 93699",
        f"hold 1 {two.pid} 41000",
        f"draw 1 {two.pid} 20",
        "gpu 0 util 97",
        "gpu 2 temp 81",
        "gpu 2 power 655123",
        "gpu 3 sm 1905",
        "fail 5 UtilizationRates 3",
        "fail 6 Temperature 3",
        "fail 7 PowerUsage 3",
    )
    theirs, mine = nvitop_sees(standin), standin.python(MINE)
    assert len(mine) == 16
    assert mine == theirs
