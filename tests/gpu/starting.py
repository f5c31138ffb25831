"""Stage `start`: rules and presets in place, the server launched, held against the driver."""

import shutil
import time
from pathlib import Path

from tests.gpu.gpu_facts import driver_text, read_driver
from tests.gpu.job import Job

PRESETS = Path(__file__).parent / "presets"
WITHIN_S = 400.0
MIB = 1024 * 1024


def start(job: Job) -> None:
    """Launch the server and look at every view of it."""
    write_config(job)
    with job.act("host") as found:
        found["gpus"] = driver_text()
        found["kvctl"] = job.kvctl.call("--version").out.strip()
        job.kvctl.call("doctor", expect=None)
        job.kvctl.call("presets", "list", expect=None)
        said = job.kvctl.call("presets", "validate", job.plan.preset, expect=None)
        job.check("the preset is valid", said.status == 0, said.text[-300:])
    with job.act("server start") as found:
        before = read_driver()
        job.check("the GPU is free before", before is None or not before.processes, before)
        said = job.kvctl.call("server", "start", job.plan.preset, within_s=WITHIN_S)
        server = job.server()
        found |= {"ready_after_s": server["ready_after_s"], "version": server["version"]}
        found |= {"stages": [(s["name"], s["state"], s["took_s"]) for s in server["stages"]]}
        found |= {"pool_tokens": server["pool_tokens"], "cli_took_s": round(said.took_s, 1)}
        job.check(
            "every stage of the start is done or skipped",
            all(s[1] in ("done", "skipped") for s in found["stages"]),
        )
    with job.act("gpus") as found:
        compare_with_driver(job, found)


def write_config(job: Job) -> None:
    """Put the presets and the rule where kvctl reads them."""
    config = job.kvctl.state / "config"
    (config / "presets").mkdir(parents=True, exist_ok=True)
    job.kvctl.state.chmod(0o700)
    for preset in PRESETS.glob("*.toml"):
        shutil.copy(preset, config / "presets")
    flag, _, pattern = job.plan.deny.partition("=")
    rule = f'[[rule]]\nflag = "{flag}"\ndeny = ["{pattern}"]\nreason = "not for this model"\n'
    (config / "config.toml").write_text(rule, encoding="utf-8")


def compare_with_driver(job: Job, found: dict[str, object]) -> None:
    """Hold `kvctl gpus` against nvidia-smi."""
    time.sleep(3)  # two polls of kvctl: the server allocates no more after its first answer
    driver, kvctld = read_driver(), job.kvctld_pid()
    document = job.kvctl.read("gpus")
    job.kvctl.call("gpus")
    job.kvctl.call("status")
    if driver is None:
        found["driver"] = "no nvidia-smi on this host"
        return
    device = document["devices"][0]
    used = device["memory_used_bytes"] / MIB
    shown = {p["pid"]: round((p["memory_bytes"] or 0) / MIB) for p in device["processes"]}
    found |= {"driver_used_mib": driver.used_mib, "kvctl_used_mib": round(used)}
    found |= {"driver_processes": driver.processes, "kvctl_processes": shown}
    found["holders"] = [(p["pid"], p["kind"], p["rank"], p["title"]) for p in device["processes"]]
    job.check(
        "memory as nvidia-smi says", abs(used - driver.used_mib) <= 64, [used, driver.used_mib]
    )
    found["open_device_file_only"] = [pid for pid, memory in shown.items() if not memory]
    shown = {pid: memory for pid, memory in shown.items() if memory}
    same = set(shown) == set(driver.processes) and all(
        abs(shown[pid] - driver.processes[pid]) <= 16 for pid in shown
    )
    job.check("processes and memory as nvidia-smi says", same, [shown, driver.processes])
    ranks = [p for p in device["processes"] if p["kind"] == "rank"]
    job.check("the scheduler is shown as a rank of the server", ranks, found["holders"])
    # NVML itself opens /dev/nvidia-uvm: only what the driver lists tells a context.
    job.check("kvctld holds no GPU context", kvctld not in driver.processes, kvctld)
