"""Every check of a preset before anything is touched, as lines to show; pure over facts.

`facts.gather_facts` reads the facts. A line says what was seen and, where it is not
well, what to do. A "fail" keeps the old server running; a "warn" is the operator's to weigh.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvctl.core.domain.gpus.devices import short_title
from kvctl.core.domain.presets.diff import flags_of_argv, numerics_of
from kvctl.core.domain.presets.flags import FlagCatalogue, Severity, check_flags
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.presets.preset import Preset, Value, canonical
from kvctl.core.domain.presets.rules import Rule, refusals, refusals_of_argv
from kvctl.core.domain.units import GIB, gib, mib
from kvctl.core.servers.preflight.gpus import gpu_lines, ranks_of
from kvctl.core.servers.preflight.types import Check, Facts, ModelFacts, PreflightLine
from kvctl.core.servers.processes.discover import SIMULATED_MODULE

_LOG_WANTED_BYTES = 2 * GIB
_LOG_NEEDED_BYTES = 64 << 20
_SHM_WANTED_BYTES = GIB
_FILES_WANTED = 4096


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: a preset, its launch, and what is known around it."""

    preset: Preset
    plan: LaunchPlan
    rules: tuple[Rule, ...]
    catalogue: FlagCatalogue | None
    facts: Facts
    flags: Mapping[str, Value]
    """Every flag on the command line, by canonical name."""
    is_simulated: bool


def check(
    preset: Preset,
    plan: LaunchPlan,
    rules: Sequence[Rule],
    catalogue: FlagCatalogue | None,
    facts: Facts,
) -> tuple[PreflightLine, ...]:
    """Return a line for every check, failures included; raises nothing."""
    flags = {canonical(name): value for name, value in flags_of_argv(plan.shown_argv)}
    is_simulated = SIMULATED_MODULE in plan.shown_argv
    subject = Subject(preset, plan, tuple(rules), catalogue, facts, flags, is_simulated)
    return tuple(line for lines in _CHECKS for line in lines(subject))


def may_start(lines: Sequence[PreflightLine]) -> bool:
    """Return whether nothing failed."""
    return all(line.ok is not Check.FAIL for line in lines)


def _rules(subject: Subject) -> Iterator[PreflightLine]:
    broken = dict.fromkeys(
        (r.rule, r.value, str(r))
        for r in (
            *refusals(subject.preset, subject.rules),
            *refusals_of_argv(subject.plan.shown_argv, subject.rules),
        )
    )
    told: set[tuple[Rule, str]] = set()
    for rule, value, text in broken:
        if (rule, value) not in told:
            told.add((rule, value))
            yield PreflightLine(Check.FAIL, "rules", text)
    if not broken:
        count = len(subject.rules)
        yield PreflightLine(Check.OK, "rules", f"{count} kept" if count else "none in config.toml")


def _flags(subject: Subject) -> Iterator[PreflightLine]:
    if subject.is_simulated:
        yield PreflightLine(Check.OK, "flags", "the simulated engine checks them itself")
        return
    if subject.catalogue is None:
        text = "not checked: the source of the SGLang that will run is not readable from here"
        yield PreflightLine(Check.WARN, "flags", subject.facts.flags_problem or text)
        return
    findings = check_flags(subject.plan.settings, subject.catalogue)
    for finding in findings:
        ok = Check.FAIL if finding.severity is Severity.ERROR else Check.WARN
        yield PreflightLine(ok, "flags", str(finding))
    if not any(finding.severity is Severity.ERROR for finding in findings):
        given = [s for s in subject.plan.settings if s.value is not False]
        version = subject.catalogue.version
        by = "its --help" if version == "unknown" else version
        text = f"{len(given)} flags known to {by}"
        yield PreflightLine(Check.OK, "flags", text)


def _metrics(subject: Subject) -> Iterator[PreflightLine]:
    if "enable-metrics" not in subject.flags:
        text = "enable-metrics is off: throughput and retractions will not be told; set it to true"
        yield PreflightLine(Check.WARN, "metrics", text)


def _interpreter(subject: Subject) -> Iterator[PreflightLine]:
    facts, plan = subject.facts, subject.plan
    if facts.interpreter_problem is not None:
        yield PreflightLine(Check.FAIL, "interpreter", facts.interpreter_problem)
    elif facts.installed is not None:
        text = f"SGLang {facts.installed.version} in {facts.installed.folder}"
        yield PreflightLine(Check.OK, "interpreter", text)
    elif plan.is_direct:
        text = f"{plan.shown_argv[0]} has no sglang; name the interpreter of the venv that has it"
        yield PreflightLine(Check.FAIL, "interpreter", text)
    else:
        text = f"runs by command: {plan.shown_argv[0]}"
        yield PreflightLine(Check.OK, "interpreter", text)


def _model(subject: Subject) -> Iterator[PreflightLine]:
    path, model = subject.plan.model_path, subject.facts.model
    if path is None:
        yield PreflightLine(Check.FAIL, "model", "no model-path; set it in [launch]")
    elif subject.is_simulated:
        yield PreflightLine(Check.OK, "model", f"{path}: simulated, nothing is read")
    elif model is None:
        text = f"{path} is not a folder here: SGLang takes it from its cache or downloads it"
        yield PreflightLine(Check.WARN, "model", text)
    else:
        yield _model_folder(path, model)


def _model_folder(path: str, model: ModelFacts) -> PreflightLine:
    if not model.exists:
        return PreflightLine(Check.FAIL, "model", f"{path} does not exist; correct model-path")
    if not model.is_readable:
        return PreflightLine(Check.FAIL, "model", f"{path} is not readable by this user")
    if not model.has_config:
        return PreflightLine(Check.FAIL, "model", f"{path} has no config.json: not a model folder")
    if not model.shards:
        return PreflightLine(Check.WARN, "model", f"{path} has config.json but no weight files")
    weights = f"{model.shards} shard{'s' if model.shards > 1 else ''}, {_size(model.weight_bytes)}"
    return PreflightLine(Check.OK, "model", f"{path}, {weights}")


def _size(size_bytes: int) -> str:
    return gib(size_bytes) if size_bytes >= GIB else mib(size_bytes)


def _gpus(subject: Subject) -> Iterator[PreflightLine]:
    replaced = subject.facts.replaced
    if subject.flags.get("device") == "cpu":
        yield PreflightLine(Check.OK, "GPUs", "none needed: device cpu")
        return
    name = replaced.name if replaced else None
    for ok, label, text in gpu_lines(subject.plan, subject.flags, subject.facts.gpus, name):
        yield PreflightLine(Check(ok), label, text)


def _port(subject: Subject) -> Iterator[PreflightLine]:
    port, facts = subject.plan.port, subject.facts.port
    other = (subject.facts.managed_ports or {}).get(port)
    if other is not None:
        text = f"{port} belongs to the server '{other}'; choose another port"
        yield PreflightLine(Check.FAIL, "port", text)
    elif not facts.is_taken:
        yield PreflightLine(Check.OK, "port", f"{port} free")
    elif facts.is_ours:
        yield PreflightLine(Check.OK, "port", f"{port} ours, free after stop")
    else:
        who = (
            f"pid {facts.pid} {short_title(facts.title)}"
            if facts.pid
            else "a process not visible here"
        )
        text = f"{port} is held by {who}; stop it or choose another port"
        yield PreflightLine(Check.FAIL, "port", text)


def _log_disk(subject: Subject) -> Iterator[PreflightLine]:
    facts = subject.facts
    if facts.log_problem is not None:
        yield PreflightLine(Check.FAIL, "log disk", f"{facts.log_folder}: {facts.log_problem}")
        return
    free = facts.log_free_bytes
    if free is None:
        yield PreflightLine(Check.WARN, "log disk", f"{facts.log_folder}: free space unknown")
    elif free < _LOG_NEEDED_BYTES:
        text = f"{gib(free)} free in {facts.log_folder}: no room for a log; free space first"
        yield PreflightLine(Check.FAIL, "log disk", text)
    else:
        ok = Check.OK if free >= _LOG_WANTED_BYTES else Check.WARN
        yield PreflightLine(ok, "log disk", f"{gib(free)} free")


def _host_ram(subject: Subject) -> Iterator[PreflightLine]:
    if "enable-hierarchical-cache" not in subject.flags:
        return
    if subject.is_simulated:
        yield PreflightLine(Check.OK, "host RAM", "simulated: hicache takes none")
        return
    needed = hicache_bytes(subject.flags)
    available = subject.facts.available_ram_bytes
    if needed is None or available is None:
        text = "hicache takes hicache-ratio (2.0) times the KV pool of every rank; not checked"
        yield PreflightLine(Check.WARN, "host RAM", text)
        return
    replaced = subject.facts.replaced
    freed = hicache_bytes(_flags_by_name(replaced.argv)) or 0 if replaced else 0
    left = available + freed - needed
    text = f"{gib(available + freed)} free after stop, hicache takes {gib(needed)}"
    if left < 0:
        advice = f"{text}: {gib(-left)} too little; lower hicache-size"
        yield PreflightLine(Check.FAIL, "host RAM", advice)
    else:
        # SGLang 0.5.23 itself wants 10 GiB to stay.
        ok = Check.OK if left >= 64 * GIB else Check.WARN
        yield PreflightLine(ok, "host RAM", f"{text}: {gib(left)} stay")


def hicache_bytes(flags: Mapping[str, Value]) -> int | None:
    """Return the host RAM that HiCache pins: hicache-size (GB) times the ranks on this host.

    None where it is sized by ratio, or off. Source: mem_cache host pools, size x 1e9 per rank.
    """
    if "enable-hierarchical-cache" not in flags:
        return None
    try:
        size = float(str(flags.get("hicache-size", 0)))
    except ValueError:
        return None
    return int(size * 1e9) * ranks_of(flags) if size > 0 else None


def _shared_memory(subject: Subject) -> Iterator[PreflightLine]:
    free = subject.facts.shm_free_bytes
    if free is not None and free < _SHM_WANTED_BYTES:
        text = f"{gib(free)} free in /dev/shm: NCCL and SGLang want more; remove old files there"
        yield PreflightLine(Check.WARN, "/dev/shm", text)
    elif free is not None:
        yield PreflightLine(Check.OK, "/dev/shm", f"{gib(free)} free")


def _open_files(subject: Subject) -> Iterator[PreflightLine]:
    limit = subject.facts.open_files_limit
    if limit is not None and limit < _FILES_WANTED:
        text = f"open files limited to {limit}: hundreds of requests need more (ulimit -n)"
        yield PreflightLine(Check.WARN, "open files", text)


def _owner(subject: Subject) -> Iterator[PreflightLine]:
    replaced = subject.facts.replaced
    if replaced is None:
        return
    if replaced.owner is not None:
        text = f"{replaced.name} is supervised: {replaced.owner} would restart it; use that instead"
        yield PreflightLine(Check.FAIL, "supervisor", text)
    else:
        yield PreflightLine(Check.OK, "supervisor", "none")


def _requests(subject: Subject) -> Iterator[PreflightLine]:
    replaced = subject.facts.replaced
    count = replaced.foreign_requests if replaced else None
    if count:
        text = f"{count} requests are not the run's own and would be cut; agree to that explicitly"
        yield PreflightLine(Check.WARN, "requests", text)


def _numerics(subject: Subject) -> Iterator[PreflightLine]:
    replaced = subject.facts.replaced
    if replaced is None or not replaced.argv:
        return
    before = dict(numerics_of(_flags_by_name(replaced.argv)))
    after = dict(numerics_of(subject.flags))
    changed = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
    if changed:
        text = f"{', '.join(changed)} changes: partial answers start again"
        yield PreflightLine(Check.WARN, "partials", text)
    else:
        yield PreflightLine(Check.OK, "partials", "same numerics: partial answers continue")


def _flags_by_name(argv: Sequence[str]) -> dict[str, Value]:
    return {canonical(name): value for name, value in flags_of_argv(argv)}


_CHECKS: tuple[Callable[[Subject], Iterator[PreflightLine]], ...] = (
    _rules,
    _flags,
    _metrics,
    _interpreter,
    _model,
    _gpus,
    _port,
    _owner,
    _log_disk,
    _host_ram,
    _shared_memory,
    _open_files,
    _requests,
    _numerics,
)
