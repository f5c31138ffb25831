"""The recorded GPU situations O6 to O9 as domain values, and as state of the stand-in library."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import (
    DeviceProcess,
    GpuDevice,
    GpuReading,
    GpuView,
    ProcessFacts,
    ProcessIdentity,
)
from kvctl.core.domain.gpus.holders import HostFacts, classify
from kvctl.core.domain.gpus.membership import KnownServer, LaunchState, Me

DATA = Path(__file__).parents[1] / "data" / "nvml"
_CODES = {"NotSupported": 3, "GpuIsLost": 15, "Unknown Error (999)": 999}


def figure(value: float | None, reason: str | None = None) -> Figure:
    """A figure as a test needs it."""
    return Figure(value, "test", None if value is None else 1.0, reason)


def device(index: int = 0, used: float | None = 0, total: float | None = 1 << 37) -> GpuDevice:
    """A healthy device that holds nothing."""
    return GpuDevice(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H200",
        bus_id=f"00000000:{0x10 + index:02X}:00.0",
        memory_used_bytes=figure(used, "not told" if used is None else None),
        memory_total_bytes=figure(total, "not told" if total is None else None),
        utilisation_ratio=figure(0),
        temperature_c=figure(34),
        power_w=figure(76),
        power_limit_w=figure(700),
        sm_clock_mhz=figure(345),
        minor=index,
    )


def process_facts(pid: int, title: str, **fields: Any) -> ProcessFacts:
    """Facts of one process: parent 1, own session, started at its pid's number of ticks."""
    start = fields.pop("start", pid)
    facts = ProcessFacts(
        identity=ProcessIdentity(pid, start),
        parent_pid=1,
        session=pid,
        group=pid,
        state="S",
        user="op",
        uid=1000,
        title=title,
        cgroup="/",
    )
    return replace(facts, **fields)


@dataclass(frozen=True)
class Case:
    """One recorded situation."""

    raw: dict[str, Any]
    reading: GpuReading
    host: HostFacts
    known: tuple[KnownServer, ...]
    me: Me

    def view(self, reading: GpuReading | None = None) -> GpuView:
        """What kvctl makes of it; of another reading of the same devices if given."""
        return classify(reading or self.reading, self.host, self.known, self.me)

    def state_lines(self) -> list[str]:
        """The same devices for the stand-in library."""
        lines = [f"driver {self.raw['driver']}", f"count {len(self.raw['devices'])}"]
        for raw in self.raw["devices"]:
            lines += _device_lines(raw["index"], raw)
        return lines


def load_case(name: str) -> Case:
    """Read `tests/data/nvml/NAME*.nvml.json`."""
    (path,) = DATA.glob(f"{name}*.nvml.json")
    raw = json.loads(path.read_text())
    user, uid = raw["me"].get("user", "op"), raw["me"]["uid"]
    me = Me(uid, "root" if uid == 0 else user, 4, raw["me"].get("pid_namespace") == "container")
    facts = {
        p["pid"]: process_facts(
            p["pid"],
            " ".join(p["cmdline"]),
            start=p["start"],
            parent_pid=p["ppid"],
            state=p["state"],
            user=p["user"],
            uid=uid if p["user"] == me.user else 4000,
        )
        for p in raw["proc"]
    }
    reading = GpuReading(
        1.0,
        tuple(_device(d) for d in raw["devices"]),
        raw["driver"],
        expected_count=raw.get("expected_count"),
    )
    return Case(raw, reading, HostFacts(facts), _known(raw), me)


def _known(raw: dict[str, Any]) -> tuple[KnownServer, ...]:
    stopped = raw.get("stopped_server")
    if stopped is None:
        return ()
    tree = tuple(ProcessIdentity(p["pid"], p["start"]) for p in stopped["tree"])
    return (
        KnownServer(
            "main", stopped["pid"], stopped["start"], stopped["pid"], (), LaunchState.ENDED, tree
        ),
    )


def _device(raw: dict[str, Any]) -> GpuDevice:
    memory = raw.get("memory", {})
    why = memory.get("error") or raw.get("error")
    return replace(
        device(raw["index"]),
        uuid=raw.get("uuid", f"unknown-{raw['index']}"),
        name=raw.get("name", "unreadable GPU"),
        bus_id=raw.get("bus_id", ""),
        memory_used_bytes=figure(memory.get("used"), why),
        memory_total_bytes=figure(memory.get("total"), why),
        processes=tuple(
            DeviceProcess(p["pid"], None if p["used"] == (1 << 64) - 1 else p["used"])
            for p in raw.get("processes", ())
        ),
        problem=raw.get("error"),
    )


def _device_lines(index: int, raw: dict[str, Any]) -> list[str]:
    if "error" in raw:
        return [f"fail {index} Handle {_CODES[raw['error']]}"]
    lines = [f"gpu {index} name {raw['name']}", f"gpu {index} uuid {raw['uuid']}"]
    rows = raw["processes"]
    held = sum(p["used"] for p in rows if p["used"] != (1 << 64) - 1)
    lines += [f"row {index} {p['pid']} {p['used']}" for p in rows]
    if "error" in raw["memory"]:
        lines.append(f"fail {index} MemoryInfo {_CODES[raw['memory']['error']]}")
    else:
        lines.append(f"gpu {index} total {raw['memory']['total']}")
        lines.append(f"gpu {index} used {raw['memory']['used'] - held}")
    if isinstance(raw["utilization"], dict):
        lines.append(f"fail {index} UtilizationRates {_CODES[raw['utilization']['error']]}")
    else:
        lines.append(f"gpu {index} util {raw['utilization']}")
    return lines
