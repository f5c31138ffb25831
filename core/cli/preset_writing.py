"""`kvctl presets set, unset, save, from-docker, from-systemd`: presets written by verb."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvctl.core.cli.preset_files import checked, store_of
from kvctl.core.cli.session import Session
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.presets.capture import Captured, document_of
from kvctl.core.domain.presets.docker import preset_of_container
from kvctl.core.domain.presets.systemd import Unit, parse_unit, preset_of_unit
from kvctl.core.domain.servers.server import Server
from kvctl.core.servers.presets.edit import Edited, Key, key_of, value_of
from kvctl.core.servers.presets.edit import set_keys as write_keys
from kvctl.core.servers.presets.edit import unset_keys as remove_keys
from kvctl.core.servers.processes.process_launch import read_launch

_ASK_S = 20.0


def set_keys(session: Session) -> int:
    """Set keys of a preset's own file; what the SGLang does not accept is told afterwards."""
    pairs = [_pair(word) for word in session.words.keys]
    store = store_of(session)
    edited = write_keys(store, session.words.preset, pairs)
    _tell(session, edited)
    return _told_problems(session)


def unset_keys(session: Session) -> int:
    """Take keys of a preset away."""
    edited = remove_keys(
        store_of(session), session.words.preset, [key_of(word) for word in session.words.keys]
    )
    _tell(session, edited)
    return _told_problems(session)


def save(session: Session) -> int:
    """Keep the running launch as a preset: over the one it came from, or from its process."""
    from kvctl.core.cli.presets import the_server

    server = the_server(session)
    captured = _of_server(server)
    return _write(session, session.words.name, captured)


def from_docker(session: Session) -> int:
    """Write a preset like a container, from `docker inspect`."""
    source = session.words.source
    text = _text_of(session, source, lambda: _inspect(source))
    try:
        document = json.loads(text)
    except ValueError as broken:
        raise UsageError(
            f"{source}: not JSON: {broken}; give the output of `docker inspect`"
        ) from (broken)
    captured = preset_of_container(document)
    name = session.words.name or _name_of(captured.document["description"].split()[2])
    return _write(session, name, captured)


def from_systemd(session: Session) -> int:
    """Write a preset like a systemd unit, from `systemctl cat`."""
    source = session.words.source
    is_unit = not (source == "-" or Path(source).is_file())
    text = _text_of(session, source, lambda: _unit_text(source))
    unit = parse_unit(text, _unit_name(source) if is_unit else "")
    captured = preset_of_unit(unit, _environment_files(unit))
    name = session.words.name or _name_of(unit.name.removesuffix(".service") or "unit")
    return _write(session, name, captured)


def _pair(word: str) -> tuple[Key, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"'{word}': write KEY=VALUE, such as mem-fraction-static=0.88")
    return key_of(name.strip()), value_of(value.strip())


def _tell(session: Session, edited: Edited) -> None:
    if edited.copied_from is not None:
        session.say(f"copied {edited.copied_from} to {edited.path}, which counts from now on")
    for change in edited.changes:
        session.say(change)
    session.say(f"wrote {edited.path}")


def _told_problems(session: Session) -> int:
    """Say what is wrong with the preset now; it was written all the same: exit 2 then."""
    found = checked(session, store_of(session), session.words.preset)
    for line in (*found.errors, *found.warnings):
        session.say(f"  {line}")
    if found.errors:
        raise UsageError(f"{session.words.preset} is not valid now; the problems are listed above")
    return 0


def _of_server(server: Server) -> Captured:
    flags = {f.name: _value(f.value) for f in server.flags if f.origin.startswith("preset")}
    description = f"as {server.name} was launched"
    if server.preset is not None:
        document: dict[str, Any] = {"description": description, "extends": server.preset}
        return Captured({**document, "flags": flags})
    if server.pid is None:
        raise KvctlError(f"the launch of {server.name} is not visible from here; nothing was saved")
    argv, environment = read_launch(server.pid)
    return Captured(document_of(argv, environment or {}, description), _unread(environment))


def _unread(environment: object) -> tuple[str, ...]:
    told = "its environment is not readable for this user: write what matters into [env]"
    return (told,) if environment is None else ()


def _write(session: Session, name: str, captured: Captured) -> int:
    path = store_of(session).save(name, captured.document, replace=session.words.replace)
    session.say(f"wrote {path}; `kvctl presets show {name} --why` explains it")
    for secret, source in captured.document.get("secrets", {}).items():
        session.say(f"  {secret} is a secret: set {source['env']} for kvctl and its daemon")
    for note in captured.notes:
        session.say(f"  {note}")
    return 0


def _text_of(session: Session, source: str, ask: Any) -> str:  # noqa: ANN401 - a callable
    if source == "-":
        return session.stdin.read()
    path = Path(source)
    if not path.is_file():
        return str(ask())
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failed:
        raise UsageError(f"{source} cannot be read: {failed}") from failed


def _inspect(container: str) -> str:
    program = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    if program is None:
        raise UsageError(
            f"there is no file {container} and no docker or podman here; give the output of "
            f"`docker inspect {container}` as a file, or - for standard input"
        )
    return _asked([program, "inspect", "--type", "container", container])


def _unit_text(unit: str) -> str:
    if shutil.which("systemctl") is None:
        raise UsageError(
            f"there is no file {unit} and no systemctl here; give the output of "
            f"`systemctl cat {unit}` as a file, or - for standard input"
        )
    try:
        return _asked(["systemctl", "--no-pager", "cat", unit])
    except KvctlError as refused:
        try:
            return _asked(["systemctl", "--user", "--no-pager", "cat", unit])
        except KvctlError:
            raise refused from None


def _asked(command: Sequence[str]) -> str:
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise KvctlError(f"{shown}: {failed}") from failed
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise KvctlError(f"{shown}: {said}")
    return done.stdout


def _unit_name(source: str) -> str:
    return source if re.search(r"\.\w+$", source) else f"{source}.service"


def _environment_files(unit: Unit) -> dict[str, str]:
    """Read the environment files that can be read here."""
    texts = {}
    for path in unit.environment_files:
        if os.access(path, os.R_OK):
            texts[path] = Path(path).read_text(encoding="utf-8", errors="replace")
    return texts


def _name_of(text: str) -> str:
    """Return a preset's name for what something else is called."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "captured"


def _value(text: str) -> str | int | float | bool:
    if text in ("on", "True", "true"):
        return True
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
