"""The preflight: every check as a line, on facts that are given, and facts read from real files."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals

import pytest

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import (
    GpuDevice,
    GpuView,
    Holder,
    HolderKind,
    ProcessFacts,
    ProcessIdentity,
)
from kvctl.core.domain.presets.flags import FlagCatalogue, FlagKind, FlagSpec
from kvctl.core.domain.presets.launch_plan import LaunchPlan, render
from kvctl.core.domain.presets.preset import Preset, merge
from kvctl.core.domain.presets.rules import Rule
from kvctl.core.domain.presets.text import parse_preset
from kvctl.core.probes.processes import HostProcesses
from kvctl.core.servers.flags.catalogue import Installed
from kvctl.core.servers.preflight.checks import check, may_start
from kvctl.core.servers.preflight.facts import (
    Surroundings,
    gather_facts,
    port_facts,
    read_facts,
)
from kvctl.core.servers.preflight.types import (
    Check,
    Facts,
    ModelFacts,
    PortFacts,
    PreflightLine,
    Replaced,
)
from kvctl.core.servers.presets.store import PresetStore
from kvctl.core.servers.processes.launch import start_ticks

GIB = 1 << 30
HEAD = '[launch]\npython = "/py"\nmodel-path = "/m"\n'
INSTALLED = Installed(Path("/site/sglang"), "0.5.23")
CATALOGUE = FlagCatalogue(
    "0.5.23",
    (
        FlagSpec("tp-size", FlagKind.INTEGER),
        FlagSpec("enable-metrics", FlagKind.SWITCH),
        FlagSpec("kv-cache-dtype", FlagKind.TEXT),
        FlagSpec("enable-hierarchical-cache", FlagKind.SWITCH),
        FlagSpec("hicache-size", FlagKind.INTEGER),
    ),
)


def gpu(index: int, problem: str | None = None) -> GpuDevice:
    figure = Figure(0, "nvml", 0.0)
    return GpuDevice(
        *(index, f"GPU-{index}aaa", "RTX", f"0:{index}"),
        *(figure, figure, figure, figure, figure, figure, figure),
        problem=problem,
    )


def holder(index: int, kind: HolderKind, memory_bytes: int, server: str | None = None) -> Holder:
    return Holder(
        gpu_uuid=f"GPU-{index}aaa",
        gpu_index=index,
        pid=41822,
        start_ticks=1,
        memory_bytes=memory_bytes,
        kind=kind,
        evidence="parent gone",
        title="sglang::scheduler_TP4",
        user="me",
        parent_pid=1,
        owner=None,
        server=server,
        rank="TP4",
        is_mine=True,
    )


GOOD = Facts(
    gpus=GpuView(devices=tuple(gpu(n) for n in range(8))),
    port=PortFacts(is_taken=False),
    installed=INSTALLED,
    model=ModelFacts(True, True, True, 64, 595 * GIB),
    log_folder="/state",
    log_free_bytes=412 * GIB,
    available_ram_bytes=431 * GIB,
    shm_free_bytes=503 * GIB,
    open_files_limit=1_048_576,
)
REPLACED = Replaced("main", ProcessIdentity(40117, 5), 40117, ("py", "--tp", "8"))


def preset_of(flags: str = "tp = 8\nenable-metrics = true", head: str = HEAD) -> Preset:
    return merge([parse_preset("p", "p.toml", f"{head}[flags]\n{flags}\n")])


def lines_of(
    facts: Facts = GOOD, preset: Preset | None = None, rules: Sequence[Rule] = ()
) -> tuple[PreflightLine, ...]:
    chosen = preset or preset_of()
    return check(chosen, render(chosen, {}), rules, CATALOGUE, facts)


def line(name: str, lines: Sequence[PreflightLine]) -> PreflightLine:
    return next(found for found in lines if found.name == name)


def test_a_good_preset_passes_every_check() -> None:
    lines = lines_of()
    assert may_start(lines)
    assert [found.ok for found in lines] == [Check.OK] * len(lines)
    assert {"rules", "flags", "interpreter", "model", "GPUs", "GPU memory", "port"} <= {
        found.name for found in lines
    }
    assert line("model", lines).text == "/m, 64 shards, 595.0 GiB"
    assert line("GPUs", lines).text == "8 of 8 present"


def test_everything_wrong_is_told_at_once() -> None:
    facts = replace(
        GOOD,
        gpus=GpuView(problem="no driver"),
        port=PortFacts(True, 51200, "python other.py"),
        installed=None,
        interpreter_problem="/py does not exist; correct [launch] python",
        model=ModelFacts(exists=False),
        log_problem="not writable by this user",
    )
    preset = preset_of('tp = 8\nkv-cache-dtype = "fp8_e4m3"\nnope = 1')
    rule = Rule("kv-cache-dtype", ("fp8*",), "degrades this model")
    lines = lines_of(facts, preset, [rule])
    failed = {found.name for found in lines if found.ok is Check.FAIL}
    assert failed == {"rules", "flags", "interpreter", "model", "GPUs", "port", "log disk"}
    assert not may_start(lines)
    assert all("\n" not in found.text for found in lines)


def test_a_rule_refuses_a_value_that_came_from_a_variable() -> None:
    preset = merge([parse_preset("p", "p", HEAD + '[flags]\nkv-cache-dtype = "${KV}"\n')])
    rule = Rule("kv-cache-dtype", ("fp8*",), "degrades")
    lines = check(preset, render(preset, {"KV": "fp8_e4m3"}), [rule], CATALOGUE, GOOD)
    assert line("rules", lines).ok is Check.FAIL


def test_missing_metrics_are_a_warning() -> None:
    lines = lines_of(preset=preset_of("tp = 8"))
    assert line("metrics", lines).ok is Check.WARN
    assert may_start(lines)


def test_flags_of_an_unreadable_sglang_are_said_to_be_unchecked() -> None:
    preset = preset_of()
    lines = check(preset, render(preset, {}), (), None, GOOD)
    assert line("flags", lines).ok is Check.WARN
    assert "not checked" in line("flags", lines).text


@pytest.mark.parametrize(
    ("model", "ok", "told"),
    [
        (ModelFacts(exists=False), Check.FAIL, "does not exist"),
        (ModelFacts(True, False), Check.FAIL, "not readable"),
        (ModelFacts(True, True, False), Check.FAIL, "no config.json"),
        (ModelFacts(True, True, True, 0), Check.WARN, "no weight files"),
        (None, Check.WARN, "downloads it"),
    ],
)
def test_the_model_folder(model: ModelFacts | None, ok: Check, told: str) -> None:
    found = line("model", lines_of(replace(GOOD, model=model)))
    assert found.ok is ok
    assert told in found.text


@pytest.mark.parametrize(
    ("head", "flags", "ok", "told"),
    [
        (HEAD, "tp = 16", Check.FAIL, "16 needed (tp 16), 8 visible"),
        (HEAD + "gpus = [0, 9]\n", "tp = 2", Check.FAIL, "GPU 9 not here"),
        (HEAD + 'gpus = ["GPU-3"]\n', "tp = 1", Check.OK, "1 of 1 present"),
        (HEAD + "gpus = [4, 5, 6, 7]\n", "tp = 2", Check.OK, "the first 2 of 4 visible"),
        (HEAD, "tp = 2\npp-size = 2\ndp-size = 2", Check.OK, "8 of 8 present"),
        (HEAD, 'device = "cpu"', Check.OK, "none needed"),
    ],
)
def test_enough_gpus(head: str, flags: str, ok: Check, told: str) -> None:
    found = line("GPUs", lines_of(preset=preset_of(flags, head)))
    assert found.ok is ok
    assert told in found.text


def test_cuda_visible_devices_limits_what_the_server_sees() -> None:
    text = f'{HEAD}[flags]\ntp = 2\n[env]\nCUDA_VISIBLE_DEVICES = "4,5,6,7"\n'
    found = line("GPUs", lines_of(preset=merge([parse_preset("p", "p", text)])))
    assert "the first 2 of 4 visible" in found.text


def test_an_ill_gpu_fails() -> None:
    ill = GpuView(devices=(*(gpu(n) for n in range(7)), gpu(7, "GPU is lost")))
    found = line("GPUs", lines_of(replace(GOOD, gpus=ill)))
    assert found.ok is Check.FAIL
    assert "GPU 7: GPU is lost" in found.text


@pytest.mark.parametrize(
    ("held", "ok"),
    [
        (holder(4, HolderKind.LEFTOVER, 93_699 << 20), Check.FAIL),
        (holder(4, HolderKind.LEFTOVER, 10 << 20), Check.FAIL),
        (holder(4, HolderKind.FOREIGN, 10 << 20), Check.WARN),
        (holder(4, HolderKind.FOREIGN, 20 * GIB), Check.FAIL),
        (holder(4, HolderKind.RANK, 90 * GIB, "main"), Check.OK),
        (holder(4, HolderKind.RANK, 90 * GIB, "other"), Check.FAIL),
    ],
)
def test_gpu_memory_must_be_free_after_our_own_stop(held: Holder, ok: Check) -> None:
    view = GpuView(devices=GOOD.gpus.devices, holders=(held,))
    lines = lines_of(replace(GOOD, gpus=view, replaced=REPLACED))
    assert line("GPU memory", lines).ok is ok


def test_a_holder_of_a_gpu_that_is_not_used_does_not_matter() -> None:
    view = GpuView(
        devices=GOOD.gpus.devices, holders=(holder(4, HolderKind.LEFTOVER, 93_699 << 20),)
    )
    preset = preset_of("tp = 2", HEAD + "gpus = [0, 1]\n")
    assert may_start(lines_of(replace(GOOD, gpus=view), preset))


@pytest.mark.parametrize(
    ("facts", "ok", "told"),
    [
        ({"port": PortFacts(True, 1, "x", True)}, Check.OK, "30000 ours, free after stop"),
        ({"port": PortFacts(True, 51200, "python a.py")}, Check.FAIL, "pid 51200 python a.py"),
        ({"port": PortFacts(True)}, Check.FAIL, "not visible here"),
        ({"managed_ports": {30000: "second"}}, Check.FAIL, "belongs to the server 'second'"),
    ],
)
def test_the_port(facts: Mapping[str, object], ok: Check, told: str) -> None:
    found = line("port", lines_of(replace(GOOD, **facts)))  # type: ignore[arg-type]
    assert found.ok is ok
    assert told in found.text


@pytest.mark.parametrize(
    ("available_gib", "argv", "ok"),
    [
        (431, (), Check.OK),
        (380, (), Check.WARN),
        (300, (), Check.FAIL),
        (50, ("--tp", "8", "--enable-hierarchical-cache", "--hicache-size", "48"), Check.WARN),
    ],
)
def test_host_ram_for_hicache_counts_every_rank_and_what_our_stop_frees(
    available_gib: int, argv: tuple[str, ...], ok: Check
) -> None:
    facts = replace(
        GOOD, available_ram_bytes=available_gib * GIB, replaced=replace(REPLACED, argv=argv)
    )
    preset = preset_of("tp = 8\nenable-hierarchical-cache = true\nhicache-size = 48")
    found = line("host RAM", lines_of(facts, preset))
    assert found.ok is ok
    assert "hicache takes 357.6 GiB" in found.text


def test_a_supervised_server_is_not_restarted_behind_its_supervisor() -> None:
    facts = replace(GOOD, replaced=replace(REPLACED, owner="systemd sglang.service"))
    found = line("supervisor", lines_of(facts))
    assert found.ok is Check.FAIL
    assert "systemd sglang.service" in found.text


def test_foreign_requests_are_counted_and_named() -> None:
    facts = replace(GOOD, replaced=replace(REPLACED, foreign_requests=30))
    assert "30 requests are not the run's own" in line("requests", lines_of(facts)).text


def test_changed_numerics_are_told() -> None:
    before = ("py", "--model-path", "/m", "--kv-cache-dtype", "fp8_e4m3")
    found = line("partials", lines_of(replace(GOOD, replaced=replace(REPLACED, argv=before))))
    assert found.text == "kv-cache-dtype changes: partial answers start again"
    same = replace(REPLACED, argv=("py", "--model-path", "/m"))
    assert line("partials", lines_of(replace(GOOD, replaced=same))).ok is Check.OK


def test_little_disk_and_few_open_files_are_told() -> None:
    facts = replace(GOOD, log_free_bytes=1 << 20, open_files_limit=1024, shm_free_bytes=1 << 20)
    lines = lines_of(facts)
    assert line("log disk", lines).ok is Check.FAIL
    assert line("open files", lines).ok is Check.WARN
    assert line("/dev/shm", lines).ok is Check.WARN


def test_a_simulated_launch_needs_no_model_and_no_host_ram() -> None:
    head = (
        '[launch]\ncommand = ["py", "-m", "kvctl.core.sim.server", "{sglang_args}"]\n'
        'model-path = "org/name"\n'
    )
    preset = preset_of(
        "tp = 8\nenable-metrics = true\nenable-hierarchical-cache = true\nhicache-size = 48", head
    )
    facts = replace(GOOD, installed=None, model=None, available_ram_bytes=GIB)
    assert [found for found in lines_of(facts, preset) if found.ok is not Check.OK] == []


class FakeProcesses:
    """Processes as a table of facts."""

    def __init__(self, *facts: ProcessFacts) -> None:
        self._facts = {f.identity.pid: f for f in facts}

    def facts(self, pid: int) -> ProcessFacts | None:
        return self._facts.get(pid)

    def environment(self, identity: ProcessIdentity, name: str) -> str | None:
        return None

    def all_facts(self) -> Sequence[ProcessFacts]:
        return tuple(self._facts.values())

    def device_file_holders(self) -> Mapping[int, tuple[int, ...]]:
        return {}

    def is_alive(self, identity: ProcessIdentity) -> bool:
        return identity.pid in self._facts

    def send(self, identity: ProcessIdentity, number: Signals) -> None:
        raise AssertionError("a preflight sends no signal")


def own_facts() -> ProcessFacts:
    pid = os.getpid()
    identity = ProcessIdentity(pid, start_ticks(pid) or 0)
    return ProcessFacts(identity, os.getppid(), os.getsid(0), 0, "R", "me", 0, "pytest", "")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_listens_on_a_port_is_found_without_touching_it(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        listener.listen()
        port = listener.getsockname()[1]
        mine = own_facts()
        held = port_facts(port, None, FakeProcesses(mine))
        assert held == PortFacts(True, os.getpid(), "pytest", False)
        replaced = Replaced("main", mine.identity, mine.session)
        assert port_facts(port, replaced, FakeProcesses(mine)).is_ours
        other = Replaced("main", ProcessIdentity(1, 1), mine.session)
        assert not port_facts(port, other, FakeProcesses(mine)).is_ours
    assert not port_facts(port, None, FakeProcesses(mine)).is_taken


async def test_facts_are_read_from_this_host(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "a.safetensors").write_bytes(b"x" * 10)
    text = f'[launch]\npython = "{sys.executable}"\nmodel-path = "{model}"\n'
    plan = render(merge([parse_preset("p", "p", text)]), {})
    facts = await gather_facts(
        plan, Surroundings(GpuView(), tmp_path / "logs" / "deep", {}), FakeProcesses()
    )
    assert facts.model == ModelFacts(True, True, True, 1, 10)
    assert facts.installed is None
    assert facts.interpreter_problem is None
    assert facts.log_problem is None
    assert facts.log_free_bytes
    assert facts.available_ram_bytes


def plan_with(model: str, python: str = "/nowhere/python") -> LaunchPlan:
    text = f'[launch]\npython = "{python}"\nmodel-path = "{model}"\n'
    return render(merge([parse_preset("p", "p", text)]), {})


async def test_a_missing_interpreter_and_model_are_facts_and_not_errors(tmp_path: Path) -> None:
    around = Surroundings(GpuView(), tmp_path, {})
    facts = await gather_facts(plan_with("/nowhere/model"), around, FakeProcesses())
    assert facts.interpreter_problem == ("/nowhere/python does not exist; correct [launch] python")
    assert facts.model == ModelFacts(exists=False)
    hub = await gather_facts(plan_with("org/name"), around, FakeProcesses())
    assert hub.model is None


def test_a_command_that_is_not_there_fails_before_anything_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "gone.toml").write_text(
        '[launch]\ncommand = ["/nowhere/docker", "run", "{sglang_args}"]\nmodel-path = "a/b"\n'
    )
    store = PresetStore([tmp_path], {"PATH": "/usr/bin"})
    plan = store.shown_plan(store.read("gone"))
    around = Surroundings(GpuView(), tmp_path, store.environment)
    facts = read_facts(plan, around, HostProcesses())
    lines = check(store.read("gone"), plan, (), None, facts)
    assert any(line.ok is Check.FAIL and "/nowhere/docker" in line.text for line in lines)
