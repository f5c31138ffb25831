"""`kvctl presets` and `kvctl flags`: how servers are launched, read straight from the files."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvctl.core.cli.effective import running_server, show_effective
from kvctl.core.cli.session import Session
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.flags import FlagCatalogue, FlagFinding, FlagSpec, Severity, check_flags
from kvctl.core.domain.launch_plan import LaunchPlan
from kvctl.core.domain.preset_diff import Change, diff, diff_argv, flags_of, text_of
from kvctl.core.domain.presets import InvalidPreset, Preset, Setting
from kvctl.core.domain.rules import Rule, refusals
from kvctl.core.domain.server import LaunchFlag, Server
from kvctl.core.servers.config import read_config
from kvctl.core.servers.flag_catalogue import InterpreterProblem, locate, read_catalogue
from kvctl.core.servers.preset_store import ListedPreset, PresetStore, preset_folders

RUNNING = "running"


def list_presets(session: Session) -> int:
    """Print every preset and whether it can be started."""
    rules = _rules(session)
    rows = [_listed_document(listed, rules) for listed in _store(session).listed()]
    if session.wants_json():
        session.document({"presets": rows})
        return 0
    for row in rows:
        note = row["refused"] or row["problem"]
        session.say(f"{row['name']:<20} {row['description']}")
        if note:
            session.say(f"{'':<20} ! {note}")
    return 0


def show(session: Session) -> int:
    """Print one preset, merged with what it extends; with --why each setting's file and line."""
    store = _store(session)
    preset = store.read(session.words.preset)
    if session.wants_json():
        session.document(_preset_document(preset))
        return 0
    session.say(f"{preset.name}: {preset.description}")
    for section, settings in _sections(preset):
        for setting in settings:
            origin = f"    # {setting.origin}" if session.words.why else ""
            session.say(f"[{section}] {setting.name} = {text_of(setting.value)}{origin}")
    for secret in preset.secrets:
        source = f"variable {secret.env}" if secret.env else f"file {secret.file}"
        session.say(f"[secrets] {secret.name} from {source}")
    return 0


def validate(session: Session) -> int:
    """Check presets completely; every problem of each, one a line; exit 2 if there is any."""
    store, rules = _store(session), _rules(session)
    names = session.words.presets or store.names()
    found = {name: list(_problems(store, name, rules)) for name in names}
    if session.wants_json():
        session.document({"presets": [{"name": n, "problems": p} for n, p in found.items()]})
    else:
        for name, problems in found.items():
            session.say(f"{name}: {'valid' if not problems else f'{len(problems)} problems'}")
            for problem in problems:
                session.say(f"  {problem}")
    broken = [name for name, problems in found.items() if problems]
    if broken:
        raise UsageError(f"not valid: {', '.join(broken)}; the problems are listed above")
    return 0


def show_diff(session: Session) -> int:
    """Print what changes from one preset, or from the running launch, to another preset."""
    store, words = _store(session), session.words
    after = store.read(words.after)
    if words.before == RUNNING:
        changes = _diff_from_running(session, after)
    else:
        changes = diff(store.read(words.before), after)
    if session.wants_json():
        session.document({"changes": [asdict(change) for change in changes]})
        return 0
    for change in changes:
        session.say(_change_line(change))
    if not changes:
        session.say("no difference")
    return 0


def save(session: Session) -> int:
    """Keep the flags of the running launch as a preset."""
    server = _server(session)
    flags = {f.name: _value(f.value) for f in server.flags if f.origin.startswith("preset")}
    document: dict[str, Any] = {"description": f"as {server.name} was launched"}
    if server.preset is not None:
        document["extends"] = server.preset
    elif not flags:
        raise KvctlError(f"the launch of {server.name} is not known to kvctl; nothing was saved")
    path = _store(session).save(
        session.words.name, {**document, "flags": flags}, replace=session.words.replace
    )
    session.say(f"wrote {path}; `kvctl presets show {session.words.name} --why` explains it")
    return 0


def flags(session: Session) -> int:
    """Print the flags a running server has; without one, those that the installed SGLang knows."""
    words = session.words
    asks_catalogue = words.diff or words.search or words.python or words.catalogue
    if not asks_catalogue and (server := running_server(session)) is not None:
        return show_effective(session, server)
    preset = _store(session).read(words.diff) if words.diff else None
    catalogue = _catalogue(session, words.python, preset)
    chosen = list(_chosen(catalogue, words.search, preset))
    if session.wants_json():
        rows = [asdict(spec) for spec in chosen]
        session.document({"version": catalogue.version, "flags": rows})
        return 0
    for spec in chosen:
        session.say(_flag_line(spec, preset))
    if not chosen:
        session.say(f"no flag of SGLang {catalogue.version} matches")
    return 0


def _store(session: Session) -> PresetStore:
    return PresetStore(preset_folders(session.paths.config), session.environ)


def _rules(session: Session) -> tuple[Rule, ...]:
    return read_config(session.paths.config / "config.toml").rules


def _listed_document(listed: ListedPreset, rules: Sequence[Rule]) -> dict[str, Any]:
    refused = refusals(listed.preset, rules) if listed.preset else ()
    return {
        "name": listed.name,
        "description": listed.preset.description if listed.preset else "",
        "path": listed.path,
        "refused": str(refused[0]) if refused else None,
        "problem": str(listed.problems[0]) if listed.problems else None,
    }


def _problems(store: PresetStore, name: str, rules: Sequence[Rule]) -> Iterator[str]:
    try:
        preset = store.read(name)
        plan = store.shown_plan(preset)
    except InvalidPreset as invalid:
        yield from (str(problem) for problem in invalid.problems)
        return
    yield from (str(refusal) for refusal in refusals(preset, rules))
    if plan.is_direct and not plan.is_observed_only:
        yield from _flag_problems(plan, store)


def _flag_problems(plan: LaunchPlan, store: PresetStore) -> Iterator[str]:
    """Check flags against the SGLang of the interpreter that the preset names."""
    try:
        # A preset's PYTHONPATH must count as it will in the launch.
        installed = locate(plan.argv[0], {**store.environment, **dict(plan.env)})
    except InterpreterProblem as problem:
        yield f"[launch] python: {problem}"
        return
    catalogue = read_catalogue(installed) if installed else None
    findings: Sequence[FlagFinding] = check_flags(plan.settings, catalogue) if catalogue else ()
    yield from (str(f) for f in findings if f.severity is Severity.ERROR)


def _preset_document(preset: Preset) -> dict[str, Any]:
    sections = {
        section: {
            s.name: {"value": s.value, "file": s.origin.path, "line": s.origin.line}
            for s in settings
        }
        for section, settings in _sections(preset)
    }
    secrets = {s.name: {"env": s.env, "file": s.file} for s in preset.secrets}
    return {
        "name": preset.name,
        "description": preset.description,
        **sections,
        "secrets": secrets,
    }


def _sections(preset: Preset) -> tuple[tuple[str, Sequence[Setting]], ...]:
    return ("launch", preset.launch), ("flags", preset.flags), ("env", preset.env)


def _change_line(change: Change) -> str:
    if change.before is None:
        return f"+ [{change.section}] {change.name} = {change.after}"
    if change.after is None:
        return f"- [{change.section}] {change.name} = {change.before}"
    return f"~ [{change.section}] {change.name}: {change.before} -> {change.after}"


def _diff_from_running(session: Session, after: Preset) -> tuple[Change, ...]:
    given = [flag for flag in _server(session).flags if flag.origin.startswith("preset")]
    before = [word for flag in given for word in _flag_words(flag)]
    return diff_argv(before, _store(session).shown_plan(after).shown_argv)


def _flag_words(flag: LaunchFlag) -> list[str]:
    return [f"--{flag.name}"] if flag.value == "on" else [f"--{flag.name}", flag.value]


def _server(session: Session) -> Server:
    with session.kvctld() as client:
        snapshot = session.picture(client)
    name = session.server_name(snapshot)
    server = next((s for s in snapshot.servers if s.name == name), None)
    if server is None:
        raise KvctlError("there is no server; `kvctl server start PRESET` launches one")
    return server


def _value(text: str) -> str | int | float | bool:
    if text in ("on", "True", "true"):
        return True
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _launch_of(session: Session, preset: Preset | None) -> LaunchPlan:
    """Return the launch of the preset, or of the first one whose interpreter is there."""
    store = _store(session)
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


def _catalogue(session: Session, given: str | None, preset: Preset | None) -> FlagCatalogue:
    """Return the flags that the given interpreter's SGLang knows, else the preset's."""
    plan = _launch_of(session, preset) if preset is not None or given is None else None
    python = given or (plan.argv[0] if plan else "")
    try:
        installed = locate(python, {**session.environ, **dict(plan.env if plan else ())})
    except InterpreterProblem as problem:
        raise KvctlError(str(problem)) from problem
    if installed is None:
        raise KvctlError(f"{python} has no sglang; give another interpreter with --python PATH")
    catalogue = read_catalogue(installed)
    if catalogue is None:
        raise KvctlError(f"the flags of SGLang {installed.version} are laid out in an unknown way")
    return catalogue


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
