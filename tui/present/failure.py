"""The failure card: first cause, what to do, evidence, and what state everything is in now."""

from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import duration, kilo_tokens, thousands
from kvctl.tui.present.gpus import holders_in_words
from kvctl.tui.present.line import Ink, Line, Pen, plain, rule, sided
from kvctl.tui.present.text import literal, width, wrap
from kvctl.tui.present.view import View


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the card's title as a pane."""
    server = snapshot.server
    return f"1 {headline(server)}" if server else "1 Failed"


def headline(server: Server) -> str:
    """Return what failed, where and after how long."""
    failure = server.failure
    parts = ["FAILED", server.preset or server.name]
    if failure and failure.stage:
        parts.append(f"at {failure.stage}")
    if failure and failure.after_s is not None:
        parts.append(f"after {duration(failure.after_s)}")
    return " ── ".join(parts)


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return the card as pane 1: cause, first advice, as much evidence as fits."""
    server = snapshot.server
    if server is None:
        return []
    failure = server.failure
    cause = failure.headline if failure else server.state_reason or "The server ended."
    drawn = [plain(columns, f" {t}", Ink.BOLD) for t in wrap(cause, columns - 2)]
    advice = failure.advice if failure else ()
    evidence = failure.evidence if failure else ()
    drawn += [plain(columns, f" {t}") for a in advice[:2] for t in wrap(f"> {a}", columns - 2)]
    drawn += [plain(columns, f" {line}", Ink.DIM) for line in evidence]
    return [*drawn[: height - 1], _keys(way_back(snapshot), columns)]


def way_back(snapshot: Snapshot) -> str | None:
    """Return the preset that `b` starts; None without one, or while something is in progress."""
    return None if snapshot.busy_command else snapshot.last_good_preset


def _keys(good: str | None, columns: int) -> Line:
    keys = " w this card   l log   "
    ways = [f"b back to {literal(good)}"] if good else []
    ways.append("S choose a preset and start")
    fitting = (way for way in ways if width(keys + way) <= columns)
    return plain(columns, keys + next(fitting, ways[-1]), Ink.DIM)


def card(snapshot: Snapshot, columns: int, actions: tuple[tuple[str, str], ...]) -> list[Line]:
    """Return the whole card in its frame; `actions` are its keys with what each does."""
    server = snapshot.server
    inner = columns - 2
    if server is None:
        return []
    failure = server.failure
    cause = failure.headline if failure else server.state_reason or "The server ended."
    evidence = failure.evidence if failure else ()
    drawn = [rule(columns, headline(server), "┌┐")]
    drawn += sided([plain(inner, f" {t}", Ink.BOLD) for t in wrap(cause, inner - 2)], columns)
    drawn.append(rule(columns, "Do", "├┤"))
    drawn += sided(_advice(server, inner) + _action_lines(actions, inner), columns)
    drawn.append(rule(columns, f"Evidence ── {_log_name(server)}", "├┤"))
    lines = [plain(inner, f" {line}", Ink.DIM) for line in evidence[:6]]
    drawn += sided(lines or [plain(inner, " the log has no line that names the cause")], columns)
    drawn.append(rule(columns, "State now", "├┤"))
    drawn += sided(_state(snapshot, server, inner), columns)
    drawn.append(rule(columns, "", "└┘"))
    return drawn


def _advice(server: Server, inner: int) -> list[Line]:
    advice = server.failure.advice if server.failure else ()
    return [plain(inner, f" {t}") for a in advice[:3] for t in wrap(a, inner - 2)]


def _action_lines(actions: tuple[tuple[str, str], ...], inner: int) -> list[Line]:
    drawn = []
    for key, text in actions:
        pen = Pen(inner)
        pen.put(3, key, Ink.KEY)
        pen.put(8, text)
        drawn.append(pen.line())
    return drawn


def _log_name(server: Server) -> str:
    return server.log_path.rsplit("/", 1)[-1] if server.log_path else "no log"


def _state(snapshot: Snapshot, server: Server, inner: int) -> list[Line]:
    run = snapshot.run
    drawn = [plain(inner, f" server  {server.state.value}; {server.state_reason or 'no process'}")]
    drawn.append(plain(inner, f" GPUs    {holders_in_words(snapshot.gpus)}"))
    if run is None:
        return [*drawn, plain(inner, " run     none")]
    partials = f" and {run.partials} partials ({kilo_tokens(run.partial_tokens)} tokens)"
    kept = f"{thousands(run.done)} answers{partials if run.partials else ''} on disk"
    return [*drawn, plain(inner, f" run     {run.state.value}, nothing lost: {kept}")]
