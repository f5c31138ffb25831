"""Pane 4, the server: the settings that decide, and what the log last said."""

from kvctl.core.domain.servers.server import EffectiveFlag, LaunchFlag, Server
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import clock_time, duration, thousands
from kvctl.tui.present.line import Ink, Line, Pen, plain
from kvctl.tui.present.text import literal, width, wrap
from kvctl.tui.present.view import View
from kvctl.tui.present.words import wall_of

_FIRST = (
    "mem-fraction-static",
    "kv-cache-dtype",
    "hicache-size",
    "max-total-tokens",
    "disable-custom-all-reduce",
)
_NEXT = (
    "max-running-requests",
    "num-continuous-decode-steps",
    "schedule-conservativeness",
    "tp-size",
)
_UNITS = {"hicache-size": "GB a rank"}
_ON = ("true", "True", "on", "")
_SELF_EVIDENT = ("model-path", "host", "port")


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the pane's title: where the settings come from, version, pid, owner."""
    server = snapshot.server
    if server is None:
        return "4 Server ── none"
    parts = ["4 Server", _origin(server)]
    if server.version:
        parts.append(f"SGLang {literal(server.version)}")
    if server.pid is not None:
        parts.append(f"pid {server.pid}")
    return " ── ".join(parts)


def _origin(server: Server) -> str:
    if server.owner:
        return f"owner {literal(server.owner)}"
    if not server.is_managed:
        return "watched, not started by kvctl"
    return "as preset" if server.preset else "started by kvctl"


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return the settings in two columns, then readiness and the log."""
    server = snapshot.server
    if server is None:
        text = "No server runs here. S starts a preset, A watches one that runs already."
        return [plain(columns, f" {part}") for part in wrap(text, columns - 2)]
    last = [_ready_line(server, columns), _log_line(server, snapshot, columns)]
    return _settings(server, columns, max(1, height - len(last))) + last


def _settings(server: Server, columns: int, rows: int) -> list[Line]:
    half = max(30, columns // 2 + 2)
    items = _items(server)
    drawn: list[Line] = []
    for number in range(min(rows, (len(items) + 1) // 2)):
        pen = Pen(columns)
        for column, item in zip((1, half), items[2 * number : 2 * number + 2], strict=False):
            room = half - 2 if column == 1 else columns - half
            end = pen.put(column, item[0], Ink.PLAIN, room)
            pen.put(end + 1, item[1], Ink.BOLD, max(0, column + room - end - 1))
        drawn.append(pen.line())
    return drawn


def _items(server: Server) -> list[tuple[str, str]]:
    """Return name and value of each setting, those that decide first."""
    values: dict[str, list[LaunchFlag]] = {}
    for flag in server.flags:
        values.setdefault(flag.name, []).append(flag)
    chosen = [name for name in (*_FIRST, *_variables(server), *_NEXT) if name in values]
    names = chosen + [n for n in values if n not in chosen and n not in _SELF_EVIDENT]
    items = [(literal(name), _value(values[name])) for name in names]
    if server.available_gpu_memory_gb is not None:
        items.insert(6, ("free after graphs", f"{server.available_gpu_memory_gb:.2f} GiB"))
    known = server.decode.max_running.value
    if known is not None and "max-running-requests" not in values:
        items.insert(7, ("max-running", thousands(known)))
    return items


def _variables(server: Server) -> list[str]:
    names = [flag.name for flag in server.flags if flag.origin == "env"]
    return [name for name in names if name.startswith("NCCL")]


def _value(flags: list[LaunchFlag]) -> str:
    """Return a setting as asked for and, where it differs, as the server resolved it."""
    shown: list[str] = []
    for flag in sorted(flags, key=lambda f: f.origin == "resolved"):
        text = "" if flag.value in _ON else literal(flag.value)
        text = thousands(int(text)) if text.isdigit() and len(text) > 4 else text
        if text not in shown:
            shown.append(text)
    unit = _UNITS.get(flags[0].name)
    suffix = f" {unit}" if unit else ""
    suffix += " (env)" if any(flag.origin == "env" for flag in flags) else ""
    return " → ".join(part for part in shown if part) + suffix


def _ready_line(server: Server, columns: int) -> Line:
    pen = Pen(columns)
    if server.ready_wall is not None:
        after = f" after {duration(server.ready_after_s)}" if server.ready_after_s else ""
        column = pen.put(1, "ready ")
        column = pen.put(column, f"{clock_time(server.ready_wall)}{after}", Ink.BOLD)
    elif server.state.is_ready:
        column = pen.put(1, "serves")
    else:
        pen.put(1, server.state_reason or f"{server.state.value}, not ready yet", Ink.DIM)
        return pen.line()
    pen.put(column + 3, server.url, Ink.DIM)
    return pen.line()


def _log_line(server: Server, snapshot: Snapshot, columns: int) -> Line:
    pen = Pen(columns)
    if server.log_path is None and not server.last_log_line:
        pen.put(1, "log –: not known for this server", Ink.DIM)
        return pen.line()
    errors = f"{server.errors_in_log} error{'s' * (server.errors_in_log != 1)}"
    column = pen.put(1, "log ")
    if server.last_log_at is not None:
        column = pen.put(column, clock_time(wall_of(snapshot, server.last_log_at)) + " ")
    column = pen.put(column, errors, Ink.WARN if server.errors_in_log else Ink.PLAIN)
    pen.put(column + 2, server.last_log_line, Ink.DIM)
    return pen.line()


def zoomed(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return every setting with its origin, one a line, from the cursor on."""
    server = snapshot.server
    if server is None:
        return body(snapshot, view, columns, height)
    facts = [_ready_line(server, columns), _log_line(server, snapshot, columns)]
    facts.append(
        plain(columns, f" {server.url}  {server.model or ''}  log {server.log_path or '–'}")
    )
    room = max(1, height - len(facts) - 1)
    rows = setting_lines(server, columns)
    first = max(0, min(view.cursor, len(rows) - room))
    head = (
        f" settings, from {first + 1} of {len(rows)}; * differs from what was given or its default"
    )
    return [*facts, plain(columns, head, Ink.DIM), *rows[first : first + room]]


def setting_lines(server: Server, columns: int) -> list[Line]:
    """Return every setting, one a line: those that move the KV ceiling, others, then variables."""
    known = {flag.name for flag in server.effective}
    rest = [flag for flag in server.flags if flag.name not in known or flag.origin == "env"]
    named = [flag.name for flag in server.effective] + [flag.name for flag in rest]
    names = min(max(map(width, named), default=8), columns // 3)
    effective = [_effective_line(flag, names, columns) for flag in server.effective]
    return effective + [_flag_line(flag, names, columns) for flag in rest]


def _effective_line(flag: EffectiveFlag, names: int, columns: int) -> Line:
    """Return a flag as it holds, then what it was given as, its default and its start value."""
    pen = Pen(columns)
    pen.put(0, "*" if flag.differs else " ", Ink.WARN)
    pen.put(1, literal(flag.name), Ink.PLAIN, names)
    value = names + 3
    end = pen.put(value, literal(flag.value), Ink.BOLD, columns - value - 22)
    facts = [
        f"start {flag.at_start}" if flag.at_start is not None else "",
        f"given {flag.given}" if flag.given is not None and "given" in flag.differs else "",
        flag.given_by or "",
        f"default {flag.default}" if "default" in flag.differs else "",
        "" if flag.given_by or "default" in flag.differs else "resolved",
    ]
    told = literal(" · ".join(fact for fact in facts if fact))
    pen.put(max(end + 2, min(columns - width(told) - 1, value + 16)), told, Ink.DIM)
    return pen.line()


def _flag_line(flag: LaunchFlag, names: int, columns: int) -> Line:
    pen = Pen(columns)
    pen.put(1, flag.name, Ink.PLAIN, names)
    value = min(names + 3, columns // 2)
    end = pen.put(value, flag.value, Ink.BOLD, columns - value - 22)
    pen.put(max(end + 2, columns - 22), flag.origin, Ink.DIM)
    return pen.line()
