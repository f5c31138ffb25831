"""The output folder of a run: its lock, its manifest, its settings and its skipped rows.

raw_responses.jsonl is the truth. manifest.json says what the run was made from, so that a resume
cannot mix settings; state.json holds only what an operator has set, so that it outlives kvctld.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvctl.core.domain.errors import CommandRefused, KvctlError, RunFileError
from kvctl.core.runs.inputs.partition import Skipped
from kvctl.core.runs.outputs.journal import DiskTrouble, fsync_folder
from kvctl.core.runs.outputs.records import VERSION, line_of

LOCK, MANIFEST, STATE, SKIPPED, SPOOL = (
    ".lock",
    "manifest.json",
    "state.json",
    "skipped.jsonl",
    ".spool",
)


class FolderInUse(CommandRefused):
    """Another process writes to the output folder."""


@dataclass(slots=True)
class FolderLock:
    """An advisory lock that ends with the process that holds it."""

    folder: Path
    descriptor: int

    def release(self) -> None:
        """Give the folder back."""
        os.close(self.descriptor)


def take_folder(folder: Path) -> FolderLock:
    """Make the folder if needed and lock it.

    Raises:
        FolderInUse: Another run writes to it; its pid is named.
        DiskTrouble: It cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DiskTrouble(
            f"{folder}: cannot be written: {error.strerror}: set another `output` in the run file"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise FolderInUse(
            f"{folder}: another run writes to it (pid {holder}): close that one first"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return FolderLock(folder, descriptor)


def write_whole(file: Path, data: bytes) -> None:
    """Replace a file so that a crash leaves the old or the new one, never a part.

    Raises:
        DiskTrouble: It cannot be written; the old one is still there.
    """
    beside = file.with_name(f".{file.name}.new")
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
        fsync_folder(file.parent)
    except OSError as error:
        raise DiskTrouble(f"{file}: cannot be written: {error.strerror}") from error


def read_object(file: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no file.

    Raises:
        RunFileError: It is not readable JSON.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunFileError(f"{file}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise RunFileError(f"{file}: not a JSON object")
    return found


class ManifestDiffers(CommandRefused):
    """The folder was begun with other inputs, model or sampling."""


def settle_manifest(folder: Path, now: Mapping[str, Any], *, force: bool) -> dict[str, Any]:
    """Compare what the run is made from with the folder's manifest, and write it.

    Facts that are None on either side are unknown and not compared.

    Raises:
        ManifestDiffers: Something differs and it was not forced; each difference is named.
    """
    file = folder / MANIFEST
    before = read_object(file)
    if before is None:
        whole = {"v": VERSION, **now, "changes": []}
        write_manifest(folder, whole)
        return whole
    differences = _differences(before, now)
    if differences and not force:
        raise ManifestDiffers(
            f"{folder}: begun with other settings: {'; '.join(differences)}: use another output "
            "folder, or --force to mix them"
        )
    known = {k: v for k, v in now.items() if v is not None and k not in _FIXED}
    changes = list(before.get("changes", []))
    if differences:
        changes.append(differences)
    whole = {**before, **known, "changes": changes}
    if whole != before:
        write_manifest(folder, whole)
    return whole


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest. Raises DiskTrouble."""
    write_whole(folder / MANIFEST, _json(manifest))


def accepted_damage(manifest: Mapping[str, Any]) -> set[str]:
    """Return the places of the lines that cannot be read and that the operator left there."""
    return set(_words(manifest.get("accepted_damage")))


def accept_damage(folder: Path, manifest: dict[str, Any], places: set[str]) -> None:
    """Keep in mind that the damage at these places was accepted. Raises DiskTrouble."""
    manifest["accepted_damage"] = sorted(places)
    write_manifest(folder, manifest)


_FIXED = {"run", "created_wall"}
"""Set once, when the folder is begun."""
_NOT_COMPARED = {*_FIXED, "v", "changes", "name", "inputs", "run_file"}
_NOT_COMPARED |= {"detected", "sampling_hash", "tokenizer"}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for key, value in now.items():
        old = before.get(key)
        if key in _NOT_COMPARED or value is None or old is None or old == value:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            names = sorted({*value, *old})
            found += [
                f"{key} {name}: {_short(old.get(name))} then, {_short(value.get(name))} now"
                for name in names
                if old.get(name) != value.get(name)
            ]
        else:
            found.append(f"{key}: {_short(old)} then, {_short(value)} now")
    return found


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."


def write_skipped(folder: Path, skipped: Iterable[Skipped]) -> None:
    """Write the rows that will not be sent, with file, line and reason."""
    lines = [
        line_of(
            {
                "v": VERSION,
                "partition": row.partition,
                "id": row.id,
                "file": row.file,
                "line": row.line,
                "reason": row.reason,
            }
        )
        for row in skipped
    ]
    file = folder / SKIPPED
    if lines or file.exists():
        write_whole(file, b"".join(lines))


@dataclass(slots=True)
class Settings:
    """What the operator has set on a run; it outlives the process that drives it."""

    folder: Path
    manual: int | None
    """The operator's number of slots; None is AUTO."""
    pauses: dict[str, str]
    """Reason by who paused."""
    weights: dict[str, float]
    """Partition weights where they were changed."""
    servers: list[str] = field(default_factory=list)
    """URLs, once the operator has added or removed some; empty: as the run file says."""
    servers_named: list[str] = field(default_factory=list)
    """What the run file named then: another list in it stands above `servers`."""

    def save(self) -> None:
        """Write state.json. Raises DiskTrouble."""
        state = {
            "v": VERSION,
            "manual": self.manual,
            "pauses": self.pauses,
            "weights": self.weights,
            "servers": self.servers,
            "servers_named": self.servers_named,
        }
        write_whole(self.folder / STATE, _json(state))


def read_skipped(folder: Path) -> set[tuple[str, int]]:
    """Return (file, line) of the rows that were not sent; empty if there is no such file.

    Raises:
        RunFileError: It cannot be read.
    """
    file = folder / SKIPPED
    try:
        # Bytes: text would be split at line separators such as U+2028 that an id may hold, too.
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        return {(row["file"], row["line"]) for row in rows}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFileError(f"{file}: cannot be read: {error}") from error


def read_settings(folder: Path, manual: int | None) -> Settings:
    """Return what the operator had set, else what the run file says (`manual`)."""
    try:
        state = read_object(folder / STATE) or {}
    except KvctlError:
        state = {}
    number = state.get("manual", manual)
    return Settings(
        folder=folder,
        manual=number if isinstance(number, int) else None,
        pauses=_texts(state.get("pauses")),
        weights=_numbers(state.get("weights")),
        servers=_words(state.get("servers")),
        servers_named=_words(state.get("servers_named")),
    )


def _words(found: object) -> list[str]:
    return [str(word) for word in found] if isinstance(found, list) else []


def _texts(found: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _numbers(found: object) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    return {str(k): float(v) for k, v in found.items() if isinstance(v, int | float)}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=False) + "\n").encode()
