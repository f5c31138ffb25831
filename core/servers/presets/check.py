"""Everything that is wrong with one preset, without looking at GPUs, ports or servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvctl.core.domain.presets.flags import Severity, check_flags
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.presets.preset import InvalidPreset
from kvctl.core.domain.presets.rules import Rule, refusals
from kvctl.core.servers.flags.asking import CatalogueCache, Told
from kvctl.core.servers.flags.catalogue import InterpreterProblem, locate
from kvctl.core.servers.presets.store import PresetStore
from kvctl.core.servers.processes.discover import SIMULATED_MODULE


@dataclass(frozen=True, slots=True)
class Findings:
    """What a preset's text, rules and flags come to, one line each, with FILE:LINE."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def findings_of(
    store: PresetStore,
    name: str,
    rules: Sequence[Rule],
    told_of: Callable[[LaunchPlan], Told],
) -> Findings:
    """Return every problem of a preset at once. Blocks while the SGLang is asked for its flags.

    `told_of` returns the flags of the SGLang that a launch would run, or raises
    InterpreterProblem.
    """
    try:
        preset = store.read(name)
        plan = store.shown_plan(preset)
    except InvalidPreset as invalid:
        return Findings(tuple(str(problem) for problem in invalid.problems))
    broken = tuple(str(refusal) for refusal in refusals(preset, rules))
    if plan.is_observed_only or SIMULATED_MODULE in plan.shown_argv:
        return Findings(broken)
    try:
        told = told_of(plan)
    except InterpreterProblem as problem:
        return Findings((*broken, f"[launch] python: {problem}"))
    if told.catalogue is None:
        return Findings(broken, (f"flags {told.problem}",))
    found = check_flags(plan.settings, told.catalogue)
    errors = tuple(str(f) for f in found if f.severity is Severity.ERROR)
    return Findings(
        (*broken, *errors), tuple(str(f) for f in found if f.severity is Severity.WARNING)
    )


def ask(plan: LaunchPlan, store: PresetStore, cache: CatalogueCache) -> Told:
    """Return the flags of the SGLang that a launch would run.

    Raises:
        InterpreterProblem: The interpreter that the preset names cannot be asked.
    """
    # A preset's PYTHONPATH must count as it will in the launch.
    environment = {**store.environment, **dict(plan.env)}
    installed = locate(plan.argv[0], environment) if plan.is_direct else None
    return cache.of_plan(plan, store.environment, installed)
