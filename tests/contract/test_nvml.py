"""NvmlSource through the real pynvml on the stand-in library; each reading in a child process."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.nvml.cases import load_case
from tests.nvml.host import MIB, StandinHost
from tests.nvml.tree import Grove, wait_until

from kvctl.core.domain.gpus.devices import GpuReading, HolderKind

pytest_plugins = ["tests.nvml.fixtures"]

READ = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from kvctl.core.probes.nvml import NvmlSource
source = NvmlSource(Path(sys.argv[1]))
print(json.dumps(asdict(source.read(7.0))))
"""


def read(host: StandinHost, proc: Path = Path("/proc")) -> dict[str, Any]:
    reading: dict[str, Any] = host.python(READ, str(proc))
    return reading


def devices(host: StandinHost) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(host)["devices"]
    return found


def value(device: dict[str, Any], field: str) -> float | None:
    figure: float | None = device[field]["value"]
    return figure


def test_every_figure_has_its_value_unit_source_and_moment(standin: StandinHost) -> None:
    standin.write(
        "driver 570.133.20",
        "gpu 0 util 97",
        "gpu 0 temp 61",
        "gpu 0 power 512300",
        "gpu 0 sm 1905",
        "gpu 0 ecc 2",
        "gpu 0 minor 3",
    )
    reading = read(standin)
    (device,) = reading["devices"]
    assert reading["driver"] == "570.133.20" and reading["problem"] is None
    assert device["memory_used_bytes"] == {
        "value": 4 * MIB,
        "source": "nvml",
        "at": 7.0,
        "reason": None,
    }
    assert value(device, "memory_total_bytes") == 143_771 * MIB
    assert value(device, "memory_reserved_bytes") == 600 * MIB
    assert value(device, "utilisation_ratio") == 0.97
    assert value(device, "temperature_c") == 61
    assert value(device, "power_w") == 512.3
    assert value(device, "power_limit_w") == 700
    assert value(device, "sm_clock_mhz") == 1905
    assert value(device, "memory_clock_mhz") == 3201
    assert value(device, "ecc_uncorrected") == 2
    assert device["minor"] == 3


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("MemoryInfo", "memory_used_bytes"),
        ("UtilizationRates", "utilisation_ratio"),
        ("Temperature", "temperature_c"),
        ("PowerUsage", "power_w"),
        ("EnforcedPowerLimit", "power_limit_w"),
        ("ClockInfo", "sm_clock_mhz"),
        ("TotalEccErrors", "ecc_uncorrected"),
    ],
)
@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "not supported"), (4, "not permitted"), (999, "Unknown Error"), (10, "in time")],
)
def test_a_figure_that_fails_carries_its_reason_and_nothing_else_fails(
    standin: StandinHost, call: str, field: str, code: int, reason: str
) -> None:
    standin.write("count 1", f"fail 0 {call} {code}")
    (device,) = devices(standin)
    assert value(device, field) is None
    assert reason in device[field]["reason"]
    assert device["problem"] is None
    others = {
        "memory_used_bytes": "MemoryInfo",
        "temperature_c": "Temperature",
        "power_w": "PowerUsage",
    }
    for other, needs in others.items():
        assert needs == call or value(device, other) is not None


def test_a_lost_gpu_is_a_row_with_its_reason_while_the_others_are_read(
    standin: StandinHost,
) -> None:
    standin.write("count 3", "fail 1 * 15")
    found = devices(standin)
    assert [d["problem"] is None for d in found] == [True, False, True]
    assert "lost" in found[1]["problem"]
    assert found[1]["memory_used_bytes"]["value"] is None
    assert value(found[2], "memory_used_bytes") == 4 * MIB


def test_a_gpu_lost_while_watched_keeps_its_identity_and_comes_back(standin: StandinHost) -> None:
    standin.write("count 2")
    code = """
import json, os, sys
from kvctl.core.probes.nvml import NvmlSource
source, state = NvmlSource(), os.environ["KVCTL_STANDIN_NVML"]
rows = []
for at, lost in ((1.0, ""), (2.0, "fail 1 * 15"), (3.0, "")):
    open(state, "w").write("count 2\\n" + lost + "\\n")
    device = source.read(at).devices[1]
    rows.append([device.uuid, device.bus_id, device.problem])
print(json.dumps(rows))
"""
    before, lost, after = standin.python(code)
    assert lost[:2] == before[:2] and "lost" in lost[2]
    assert before[2] is None and after == before


def test_a_lost_gpu_that_was_never_seen_is_named_by_its_place_in_proc(
    standin: StandinHost, tmp_path: Path
) -> None:
    for bus in ("0000:18:00.0", "0000:ae:00.0"):
        (tmp_path / "driver" / "nvidia" / "gpus" / bus).mkdir(parents=True)
    standin.write("count 2", "fail 1 Handle 15")
    reading = read(standin, tmp_path)
    assert reading["devices"][1]["bus_id"] == "00000000:AE:00.0"
    assert reading["expected_count"] == 2


def test_a_gpu_that_vanished_from_nvml_is_still_expected(
    standin: StandinHost, tmp_path: Path
) -> None:
    for bus in ("0000:18:00.0", "0000:ae:00.0"):
        (tmp_path / "driver" / "nvidia" / "gpus" / bus).mkdir(parents=True)
    standin.write("count 1")
    reading = read(standin, tmp_path)
    assert (len(reading["devices"]), reading["expected_count"]) == (1, 2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "not loaded"),
        (18, "kernel module 570.1.2, library unknown"),
        (4, "may not use"),
        (999, "container"),
    ],
)
def test_a_driver_that_cannot_be_used_is_one_clear_line(
    standin: StandinHost, tmp_path: Path, code: int, words: str
) -> None:
    version = tmp_path / "driver" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1.2  Tue\n")
    standin.write(f"init {code}")
    reading = read(standin, tmp_path)
    assert reading["devices"] == []
    assert words in reading["problem"] and "\n" not in reading["problem"]
    assert reading["is_bare"] == (code == 9)
    assert "everything else works" in reading["problem"]


NO_LIBRARY = """
import ctypes
load = ctypes.CDLL
def refuse(name, *rest, **more):
    if name and "libnvidia-ml" in str(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    return load(name, *rest, **more)
ctypes.CDLL = refuse
"""
"""The loader of a host without a driver, wherever this runs."""


def test_without_the_library_one_line_says_so_and_nothing_raises(tmp_path: Path) -> None:
    words = [sys.executable, "-c", NO_LIBRARY + READ, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["problem"] == (
        "no NVIDIA driver here (libnvidia-ml.so.1 not found): GPU figures and GPU kills are off,"
        " everything else works"
    )


def test_a_driver_that_lists_devices_in_proc_is_no_host_without_gpus(
    standin: StandinHost, tmp_path: Path
) -> None:
    (tmp_path / "driver" / "nvidia" / "gpus" / "0000:18:00.0").mkdir(parents=True)
    standin.write("init 9")
    assert not read(standin, tmp_path)["is_bare"]
    standin.write("count 0")
    assert not read(standin, tmp_path)["is_bare"]
    assert read(standin, tmp_path / "nothing")["is_bare"]


def test_a_driver_that_comes_later_is_found_at_the_next_try_and_not_asked_before(
    standin: StandinHost,
) -> None:
    code = """
import json, os
from kvctl.core.probes.nvml import NvmlSource
source, state = NvmlSource(), os.environ["KVCTL_STANDIN_NVML"]
open(state, "w").write("init 9\\n")
counts = [len(source.read(100.0).devices)]
open(state, "w").write("count 2\\n")
counts += [len(source.read(at).devices) for at in (105.0, 111.0)]
print(json.dumps(counts))
"""
    assert standin.python(code) == [0, 0, 2]


def test_memory_that_the_driver_reports_as_all_ones_is_unknown(standin: StandinHost) -> None:
    standin.write("count 1", "gpu 0 total 18446744073709551615", "row 0 77 18446744073709551615")
    (device,) = devices(standin)
    assert value(device, "memory_total_bytes") is None
    assert device["processes"] == [{"pid": 77, "memory_bytes": None}]
    assert device["processes_problem"] is None


def test_impossible_pids_and_sizes_are_dropped_and_said(standin: StandinHost) -> None:
    standin.write(
        "count 1",
        "row 0 0 1048576",
        "row 0 4294967295 1048576",
        "row 0 4194304 1048576",
        "row 0 88 999999999999999",
        "row 0 99 1048576",
    )
    (device,) = devices(standin)
    assert device["processes"] == [
        {"pid": 88, "memory_bytes": None},
        {"pid": 99, "memory_bytes": MIB},
    ]
    assert "driver and pynvml do not fit" in device["processes_problem"]


def test_compute_and_graphics_rows_of_one_process_are_one(standin: StandinHost) -> None:
    standin.write("count 1", "keep 0 77 300", "draw 0 77 20", "draw 0 78 20")
    (device,) = devices(standin)
    assert device["processes"] == [
        {"pid": 77, "memory_bytes": 300 * MIB},
        {"pid": 78, "memory_bytes": 20 * MIB},
    ]


def test_a_process_list_that_may_not_be_read_is_a_problem_of_the_list_alone(
    standin: StandinHost,
) -> None:
    standin.write("count 1", "fail 0 ComputeRunningProcesses 4")
    (device,) = devices(standin)
    assert device["processes_problem"] == "process list: not permitted for this user"
    assert device["problem"] is None


def test_throttle_reasons_are_words_and_idle_is_none(standin: StandinHost) -> None:
    standin.write("count 2", "gpu 0 throttle 0x64", "gpu 1 throttle 1")
    first, second = devices(standin)
    assert first["throttle_reasons"] == [
        "power limit",
        "thermal limit",
        "hardware thermal slowdown",
    ]
    assert second["throttle_reasons"] == []


def test_mig_instances_have_their_own_memory_and_no_utilisation(standin: StandinHost) -> None:
    standin.write("count 1", "gpu 0 mig 1", "mig 0 10000 300", "mig 0 20000 7", "fail 0 MemoryX 4")
    (device,) = devices(standin)
    assert device["is_mig"]
    assert device["utilisation_ratio"]["reason"] == "not told in MIG mode"
    sizes = [(value(m, "memory_used_bytes"), m["gpu_instance"]) for m in device["mig_instances"]]
    assert sizes == [(300 * MIB, 1), (7 * MIB, 2)]
    assert {m["uuid"] for m in device["mig_instances"]} == {"MIG-0-0", "MIG-0-1"}


@pytest.mark.parametrize("how", ["fail 0 MemoryInfo 3", "gpu 0 total 0"])
def test_a_recognised_unified_device_shows_the_hosts_memory(
    standin: StandinHost, tmp_path: Path, how: str
) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:       127600748 kB\nMemFree: 5 kB\nMemAvailable:   118566368 kB\n"
    )
    standin.write("gpu 0 name NVIDIA GB10", how)
    (device,) = read(standin, tmp_path)["devices"]
    assert device["is_unified"]
    assert value(device, "memory_total_bytes") == 127_600_748 * 1024
    assert value(device, "memory_used_bytes") == (127_600_748 - 118_566_368) * 1024
    assert "unified" in device["memory_used_bytes"]["source"]


def test_a_data_centre_gpu_that_cannot_tell_its_memory_is_not_taken_for_unified(
    standin: StandinHost,
) -> None:
    standin.write("gpu 0 name NVIDIA H100", "fail 0 MemoryInfo 3")
    (device,) = devices(standin)
    assert not device["is_unified"]
    assert value(device, "memory_used_bytes") is None


def test_sixteen_devices_are_read_in_order(standin: StandinHost) -> None:
    standin.write("count 16")
    found = devices(standin)
    assert [d["index"] for d in found] == list(range(16))
    assert len({d["uuid"] for d in found}) == 16


def test_a_call_that_hangs_does_not_hang_the_next_read(standin: StandinHost) -> None:
    standin.write("count 1", "stall 5")
    code = """
import json, threading, time
from kvctl.core.probes.nvml import NvmlSource
source = NvmlSource(patience_s=0)
threading.Thread(target=source.read, args=(100.0,), daemon=True).start()
while not source._lock.locked():
    time.sleep(0.001)
began = time.monotonic()
problem = source.read(112.0).problem
print(json.dumps([problem, time.monotonic() - began]))
"""
    problem, took = standin.python(code)
    assert problem.startswith("NVML has not answered for 12 s")
    assert took < 1


def test_two_reads_at_once_both_get_the_devices(standin: StandinHost) -> None:
    standin.write("count 4", "stall 0.002")
    code = """
import json
from concurrent.futures import ThreadPoolExecutor
from kvctl.core.probes.nvml import NvmlSource
source = NvmlSource()
with ThreadPoolExecutor(4) as pool:
    readings = list(pool.map(source.read, (1.0, 2.0, 3.0, 4.0)))
print(json.dumps([[len(r.devices), r.problem] for r in readings]))
"""
    assert standin.python(code) == [[4, None]] * 4


def test_memory_follows_the_process_that_holds_it(standin: StandinHost, grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_TP0")
    standin.write("count 1", f"hold 0 {one.pid} 93699")
    (device,) = devices(standin)
    assert value(device, "memory_used_bytes") == 93_703 * MIB
    assert device["processes"] == [{"pid": one.pid, "memory_bytes": 93_699 * MIB}]
    grove.clear()
    wait_until(lambda: devices(standin)[0]["processes"] == [])
    assert value(devices(standin)[0], "memory_used_bytes") == 4 * MIB


@pytest.mark.parametrize("name", ["o06", "o07", "o08", "o09"])
def test_the_recorded_cases_read_the_same_through_pynvml(standin: StandinHost, name: str) -> None:
    case = load_case(name)
    standin.write(*case.state_lines())
    reading = _reading(read(standin))
    expected, seen = case.view(), case.view(reading)
    if name == "o07":
        assert seen.devices[0].is_unified and not seen.devices[2].is_unified
    assert [(h.pid, h.kind, h.memory_bytes, h.server) for h in seen.holders] == [
        (h.pid, h.kind, h.memory_bytes, h.server) for h in expected.holders
    ]
    for mine, theirs in zip(seen.devices, expected.devices, strict=True):
        assert (mine.problem is None) == (theirs.problem is None)
        if not mine.is_unified:
            assert mine.memory_used_bytes.value == theirs.memory_used_bytes.value
            assert mine.memory_total_bytes.value == theirs.memory_total_bytes.value


def test_the_recorded_orphan_is_a_leftover_through_pynvml(standin: StandinHost) -> None:
    case = load_case("o09")
    standin.write(*case.state_lines())
    view = case.view(_reading(read(standin)))
    kinds = {holder.pid: holder.kind for holder in view.holders}
    assert kinds[2001] is HolderKind.LEFTOVER and kinds[7777] is HolderKind.FOREIGN


def _reading(raw: dict[str, Any]) -> GpuReading:
    return msgspec.convert(raw, GpuReading)


def test_reading_twice_gives_the_same_document(standin: StandinHost) -> None:
    standin.write("count 2", "keep 0 77 300")
    first, second = read(standin), read(standin)
    assert first == second and asdict(_reading(first))["devices"][0]["uuid"].startswith("GPU-00")


XIDS = """
import json, os, sys
from pathlib import Path
from kvctl.core.probes.nvml import NvmlSource
kmsg = Path(sys.argv[1])
source, state = NvmlSource(kmsg=kmsg), os.environ["KVCTL_STANDIN_NVML"]
rows = []
for at, lines in ((1.0, []), (2.0, ["xid 1 79"]), (3.0, ["xid 1 79", "xid 0 4242"])):
    open(state, "w").write("\\n".join(["count 2", *lines, *sys.argv[2:]]) + "\\n")
    found = source.read(at).devices
    rows.append([[[[x.code, x.text, x.at] for x in d.xids], d.xid_problem] for d in found])
print(json.dumps(rows))
"""


def test_an_xid_is_told_of_its_device_once_and_kept(standin: StandinHost, tmp_path: Path) -> None:
    first, second, third = standin.python(XIDS, str(tmp_path / "no-kmsg"))
    assert first == [[[], None], [[], None]]
    off_the_bus = [79, "the GPU has fallen off the bus", 2.0]
    assert second == [[[], None], [[off_the_bus], None]]
    assert third == [[[[4242, "", 3.0]], None], [[off_the_bus], None]]


def test_xids_from_before_kvctld_are_read_in_the_kernel_log(
    standin: StandinHost, tmp_path: Path
) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.write_text(
        "6,1,1500000,-;usb 1-1: something else\n"
        "3,2,1600000,-;NVRM: Xid (PCI:0000:11:00): 31, pid=77, name=python, Ch 00000008\n"
        "3,3,1700000,-;NVRM: Xid (PCI:0000:10:00.0): 777, \x1b[31mred\n"
    )
    first = standin.python(XIDS, str(kmsg), "fail 0 RegisterEvents 3", "fail 1 RegisterEvents 3")[0]
    assert first[0] == [[[777, "[31mred", 1.7]], None]
    assert first[1] == [[[31, "GPU memory page fault: usually the program", 1.6]], None]


def test_xids_that_cannot_be_read_say_why(standin: StandinHost, tmp_path: Path) -> None:
    fails = ["fail 0 RegisterEvents 3", "fail 1 RegisterEvents 4"]
    first = standin.python(XIDS, str(tmp_path / "no-kmsg"), *fails)[0]
    assert "not permitted" in first[1][1] and "kernel log: No such file" in first[1][1]


@pytest.mark.parametrize(
    ("number", "word"), [(0, "none"), (1, "passthrough"), (2, "vGPU"), (3, "vGPU host"), (9, None)]
)
def test_the_virtualisation_of_a_device_is_named(
    standin: StandinHost, number: int, word: str | None
) -> None:
    standin.write(f"gpu 0 virt {number}")
    assert devices(standin)[0]["virtualisation"] == word


def test_a_driver_that_does_not_tell_virtualisation_costs_nothing_else(
    standin: StandinHost,
) -> None:
    standin.write("count 1", "fail 0 VirtualizationMode 3")
    (device,) = devices(standin)
    assert (device["virtualisation"], device["problem"]) == (None, None)
