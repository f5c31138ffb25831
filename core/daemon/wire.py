"""What goes over kvctld's socket: snapshots, commands, outcomes and events as JSON lines.

Every message carries the wire version. Reading is typed: what does not fit is one clear error,
never a half-filled value. Unknown keys in a snapshot are skipped (a newer kvctld may add some),
unknown fields in a command are refused (an order must not be understood in part).
"""

import dataclasses
from typing import Any, TypeVar

import msgspec

from kvctl.core.controller.commands import COMMANDS, Command, Outcome
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot

WIRE_VERSION = 1
OPERATOR_HEADER = "X-Kvctl-Operator"
"""HTTP header of a stream that names the panel's operator."""

T = TypeVar("T")

_NAMES: dict[type[Any], str] = {kind: name for name, kind in COMMANDS.items()}


class WireMismatch(KvctlError):
    """The other side speaks another version of the protocol, or none."""


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What kvctld says about itself."""

    pid: int
    version: str
    """kvctl's version."""
    socket: str
    state: str
    """The state folder."""
    log: str
    host: str
    started_wall: float
    """UTC seconds."""
    uptime_s: float
    is_simulated: bool = False
    operators: tuple[str, ...] = ()
    """Names of attached panels."""
    wire: int = WIRE_VERSION


@dataclasses.dataclass(frozen=True, slots=True)
class Goodbye:
    """The last line of a stream that kvctld ends on purpose."""

    reason: str


class _Message(msgspec.Struct, omit_defaults=True):
    """One line: the version and exactly one content."""

    v: int = 0
    snapshot: msgspec.Raw = msgspec.Raw()
    event: msgspec.Raw = msgspec.Raw()
    outcome: msgspec.Raw = msgspec.Raw()
    daemon: msgspec.Raw = msgspec.Raw()
    goodbye: msgspec.Raw = msgspec.Raw()


_CONTENTS: dict[str, type[Any]] = {
    "snapshot": Snapshot,
    "event": Event,
    "outcome": Outcome,
    "daemon": DaemonInfo,
    "goodbye": Goodbye,
}
_FIELD_OF: dict[type[Any], str] = {kind: name for name, kind in _CONTENTS.items()}


def encode(content: Snapshot | Event | Outcome | DaemonInfo | Goodbye) -> bytes:
    """Return one line (without its end) for any content of the protocol."""
    return _to_json({"v": WIRE_VERSION, _FIELD_OF[type(content)]: content})


def decode(line: bytes, kind: type[T]) -> T:
    """Read one line that must hold a `kind`.

    Raises:
        WireMismatch: Another version, another content, or not JSON.
    """
    content = decode_any(line)
    if not isinstance(content, kind):
        raise WireMismatch(
            f"kvctld answered {type(content).__name__} for {kind.__name__}; {_ADVICE}"
        )
    return content


def decode_any(line: bytes) -> object:
    """Read one line of whatever content.

    Raises:
        WireMismatch: Another version, or not a message of this protocol.
    """
    try:
        message = msgspec.json.decode(line, type=_Message)
        if message.v != WIRE_VERSION:
            raise WireMismatch(
                f"kvctld speaks protocol {message.v}, this kvctl {WIRE_VERSION}; {_ADVICE}"
            )
        for name, kind in _CONTENTS.items():
            raw: msgspec.Raw = getattr(message, name)
            if memoryview(raw):
                content: object = msgspec.json.decode(raw, type=kind)
                return content
    except msgspec.DecodeError as error:
        raise WireMismatch(f"kvctld's answer is not understood ({error}); {_ADVICE}") from error
    raise WireMismatch(f"kvctld's answer holds nothing this kvctl knows; {_ADVICE}")


def encode_command(command: Command) -> bytes:
    """Return a command as the body of POST /v1/commands."""
    fields = msgspec.to_builtins(command)
    return _to_json({"v": WIRE_VERSION, "command": _NAMES[type(command)], **fields})


def decode_command(body: bytes) -> Command:
    """Read the body of POST /v1/commands.

    Raises:
        UsageError: Not JSON, another version, an unknown command or field, or a wrong value.
    """
    try:
        words = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"the command is not a JSON object: {error}") from error
    version = words.pop("v", WIRE_VERSION)
    if version != WIRE_VERSION:
        raise UsageError(
            f"the command is of protocol version {version}, kvctld speaks {WIRE_VERSION}; {_ADVICE}"
        )
    return _command_from(words)


def _command_from(words: dict[str, Any]) -> Command:
    name = words.pop("command", None)
    kind = COMMANDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UsageError(f"unknown command {name!r}; known are {', '.join(COMMANDS)}")
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = [field for field in words if field not in known]
    if unknown:
        fields = ", ".join(known) or "none"
        raise UsageError(f"command {name} has no field {unknown[0]!r}; its fields: {fields}")
    try:
        return msgspec.convert(words, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"command {name}: {error}") from error


def _to_json(content: object) -> bytes:
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        # A process title or a log line can hold bytes that are no UTF-8: shown as U+FFFD.
        return msgspec.json.encode(_without_surrogates(msgspec.to_builtins(content)))


def _without_surrogates(content: object) -> object:
    match content:
        case str():
            return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in content)
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in content.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in content]
        case _:
            return content


_ADVICE = "kvctl was probably upgraded under a running kvctld: `kvctl daemon stop`, then try again"
