"""`kvctl presets list, show, validate, diff`: how servers are launched, read from the files."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvctl.core.cli.preset_files import checked, rules_of, store_of
from kvctl.core.cli.session import Session
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.presets.capture import entry_of
from kvctl.core.domain.presets.diff import Change, diff, diff_argv, text_of
from kvctl.core.domain.presets.launch_plan import flag_words, redact
from kvctl.core.domain.presets.preset import Preset, Setting
from kvctl.core.domain.presets.rules import Rule, refusals
from kvctl.core.domain.servers.server import LaunchFlag, Server
from kvctl.core.servers.presets.store import ListedPreset
from kvctl.core.servers.processes.process_launch import read_launch

RUNNING = "running"


def list_presets(session: Session) -> int:
    """Print every preset and whether it can be started."""
    rules, store = rules_of(session), store_of(session)
    rows = [_listed_document(listed, rules) for listed in store.listed()]
    for folder in store.missing_folders():
        session.warn(f"{folder} of [presets] folders in config.toml is not there")
    if session.wants_json():
        session.document({"presets": rows})
        return 0
    for row in rows:
        session.say(f"{row['name']:<20} {row['description']}")
        for note in filter(None, (row["refused"], row["problem"], _hides_line(row["hides"]))):
            session.say(f"{'':<20} ! {note}")
    return 0


def _hides_line(hides: Sequence[str]) -> str | None:
    return f"counts before {', '.join(hides)}" if hides else None


def show(session: Session) -> int:
    """Print one preset, merged with what it extends; with --why each setting's file and line."""
    store = store_of(session)
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
        origin = f"    # {secret.origin}" if session.words.why else ""
        session.say(f"[secrets] {secret.name} from {source}{origin}")
    return 0


def validate(session: Session) -> int:
    """Check presets completely; every problem of each, one a line; exit 2 if there is any."""
    store = store_of(session)
    names = session.words.presets or store.names()
    found = {name: checked(session, store, name) for name in names}
    if session.wants_json():
        rows = [
            {"name": n, "problems": list(f.errors), "warnings": list(f.warnings)}
            for n, f in found.items()
        ]
        session.document({"presets": rows})
    else:
        for name, findings in found.items():
            count = len(findings.errors)
            word = f"{count} problem{'s' if count > 1 else ''}" if count else "valid"
            session.say(f"{name}: {word}")
            for line in findings.errors:
                session.say(f"  {line}")
            for line in findings.warnings:
                session.say(f"  ! {line}")
    broken = [name for name, findings in found.items() if findings.errors]
    if broken:
        raise UsageError(f"not valid: {', '.join(broken)}; the problems are listed above")
    return 0


def show_diff(session: Session) -> int:
    """Print what changes from one preset, or from the running launch, to another preset."""
    store, words = store_of(session), session.words
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


def _listed_document(listed: ListedPreset, rules: Sequence[Rule]) -> dict[str, Any]:
    refused = refusals(listed.preset, rules) if listed.preset else ()
    return {
        "name": listed.name,
        "description": listed.preset.description if listed.preset else "",
        "path": listed.path,
        "refused": str(refused[0]) if refused else None,
        "problem": problem_line(listed),
        "needs": list(listed.needs),
        "hides": list(listed.hides),
    }


def problem_line(listed: ListedPreset) -> str | None:
    """Return in one line what is wrong with a preset, or what it still needs and what to do."""
    if listed.needs:
        names = ", ".join(f"${name}" for name in listed.needs)
        return f"needs {names}: set it where kvctl and its daemon start (`kvctl daemon stop` first)"
    return str(listed.problems[0]) if listed.problems else None


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
    server = the_server(session)
    given = [flag for flag in server.flags if flag.origin.startswith("preset")]
    before = [word for flag in given for word in _flag_words(flag)]
    if server.preset is None and server.pid is not None:
        argv, _ = read_launch(server.pid)  # it was found running: what it was given is in /proc
        before = [
            w for name, value in entry_of(redact(argv)).flags for w in flag_words(name, value)
        ]
    return diff_argv(before, store_of(session).shown_plan(after).shown_argv)


def _flag_words(flag: LaunchFlag) -> list[str]:
    return [f"--{flag.name}"] if flag.value == "on" else [f"--{flag.name}", flag.value]


def the_server(session: Session) -> Server:
    """Return the server that is meant; raises KvctlError where there is none."""
    with session.kvctld() as client:
        snapshot = session.picture(client)
    name = session.server_name(snapshot)
    server = next((s for s in snapshot.servers if s.name == name), None)
    if server is None:
        raise KvctlError("there is no server; `kvctl server start PRESET` launches one")
    return server
