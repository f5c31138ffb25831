"""`kvctl flags`: those of the running server, or every flag of the SGLang a preset would run."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from kvctl.core.cli.effective import running_server, show_effective
from kvctl.core.cli.preset_files import catalogues_of, store_of
from kvctl.core.cli.session import Session
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.presets.diff import flags_of, text_of
from kvctl.core.domain.presets.flags import FlagCatalogue, FlagSpec
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.presets.preset import Preset
from kvctl.core.servers.flags.catalogue import InterpreterProblem, locate
from kvctl.core.servers.presets.check import ask
from kvctl.core.servers.presets.store import PresetStore


def flags(session: Session) -> int:
    """Print the flags a running server has; without one, those that the installed SGLang knows."""
    words = session.words
    asks_catalogue = words.diff or words.search or words.python or words.catalogue
    if not asks_catalogue and (server := running_server(session)) is not None:
        return show_effective(session, server)
    store = store_of(session)
    preset = store.read(words.diff) if words.diff else None
    catalogue = _catalogue(session, store, words.python, preset)
    chosen = list(_chosen(catalogue, words.search, preset))
    if session.wants_json():
        rows = [asdict(spec) for spec in chosen]
        session.document({"version": catalogue.version, "flags": rows})
        return 0
    for spec in chosen:
        session.say(_flag_line(spec, preset))
        if words.search and spec.help:
            session.say(f"    {spec.help}")
    if not chosen:
        session.say(f"no flag of SGLang {catalogue.version} matches")
    return 0


def _catalogue(
    session: Session, store: PresetStore, given: str | None, preset: Preset | None
) -> FlagCatalogue:
    """Return the flags that the given interpreter's SGLang knows, else the preset's."""
    try:
        if given is None:
            told = ask(_launch_of(store, preset), store, catalogues_of(session))
        else:
            # A preset's PYTHONPATH must count as it will in the launch.
            env = dict(store.shown_plan(preset).env) if preset is not None else {}
            environment = {**session.environ, **env}
            installed = locate(given, environment)
            told = catalogues_of(session).of_interpreter(given, environment, installed)
    except InterpreterProblem as problem:
        raise KvctlError(str(problem)) from problem
    if told.catalogue is None:
        raise KvctlError(f"{told.problem}; give another interpreter with --python PATH")
    return told.catalogue


def _launch_of(store: PresetStore, preset: Preset | None) -> LaunchPlan:
    """Return the launch of the preset, or of the first one whose interpreter is there."""
    if preset is not None:
        return store.shown_plan(preset)
    for listed in store.listed():
        setting = listed.preset and listed.preset.launch_setting("python")
        if listed.preset is None or setting is None or listed.problems:
            continue
        plan = store.shown_plan(listed.preset)
        if Path(plan.argv[0]).exists():
            return plan
    raise UsageError("no preset names an interpreter that is there; give one with --python PATH")


def _chosen(
    catalogue: FlagCatalogue, word: str | None, preset: Preset | None
) -> Iterator[FlagSpec]:
    wanted = flags_of(preset) if preset else None
    for spec in catalogue.flags:
        is_set = wanted is None or any(catalogue.find(name) is spec for name in wanted)
        if is_set and (word is None or word.replace("_", "-").lower() in spec.name):
            yield spec


def _flag_line(spec: FlagSpec, preset: Preset | None) -> str:
    given = preset.flag(spec.name) if preset else None
    value = f"  set to {text_of(given.value)}" if given else ""
    choices = f"  one of {', '.join(spec.choices)}" if spec.choices else ""
    default = f"  default {spec.default}" if spec.default is not None else ""
    return f"--{spec.name}  {spec.kind.value}{value}{default}{choices}"
