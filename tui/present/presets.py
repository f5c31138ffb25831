"""Pane 5, presets: what a restart would bring, from the last launches on this host."""

from kvctl.core.domain.run import Run
from kvctl.core.domain.snapshot import PresetSummary, Snapshot
from kvctl.core.domain.units import kilo_tokens, thousands
from kvctl.tui.present.figures import MISSING, rounded_tokens
from kvctl.tui.present.line import Ink, Line, Pen, plain
from kvctl.tui.present.text import literal, width
from kvctl.tui.present.view import View
from kvctl.tui.present.words import hours, open_partition, short_paths

_NOTE = "tok/s steady; – never reached steady state"


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the pane's title."""
    if not snapshot.presets:
        return "5 Presets ── none found"
    return "5 Presets ── what a restart would bring"


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return one row a preset, below it why it cannot be started; the running one has a mark."""
    if not snapshot.presets:
        return [plain(columns, " kvctl presets list says where they are looked for.", Ink.DIM)]
    drawn = [_head(snapshot.run, columns)]
    for number, preset in enumerate(in_order(snapshot)):
        line = _row(preset, snapshot, columns)
        is_cursor = view.zoom == 5 and view.cursor == number
        drawn.append(line.inked(Ink.CURSOR) if is_cursor else line)
        if preset.refused and not preset.problem:
            drawn.append(plain(columns, f"     refused: {preset.refused}", Ink.DIM))
    if len(drawn) < height:
        drawn.append(plain(columns, f" {_NOTE}", Ink.DIM))
    return drawn


def in_order(snapshot: Snapshot) -> list[PresetSummary]:
    """Return the presets as listed everywhere; those that cannot be read come last."""
    return sorted(snapshot.presets, key=lambda preset: preset.problem is not None)


def _head(run: Run | None, columns: int) -> Line:
    pen = Pen(columns)
    part = open_partition(run)
    length = f" {kilo_tokens(part.mean_tokens)}" if part and part.mean_tokens else ""
    left = f"{part.name} left" if part else "left"
    shift = columns - 58
    pen.put(3, "preset", Ink.DIM)
    for end, word in ((24, "KV tok"), (33, f"fit{length}"), (40, "gen"), (47, "eff"), (57, left)):
        pen.right(end + shift, word, Ink.DIM, 10)
    return pen.line()


def _row(preset: PresetSummary, snapshot: Snapshot, columns: int) -> Line:
    pen = Pen(columns)
    shift = columns - 58
    if preset.is_running:
        pen.put(1, ">", Ink.BOLD)
    tokens = rounded_tokens(preset.pool_tokens)
    room = 20 + shift - width(tokens)
    pen.put(3, preset.name, Ink.BOLD if preset.is_running else Ink.PLAIN, room)
    if preset.problem:
        start = 5 + width(literal(preset.name))
        pen.put(start, f"cannot be read: {short_paths(preset.problem)}", Ink.DIM)
        return pen.line()
    pen.right(24 + shift, tokens, room=8)
    pen.right(33 + shift, _fit(preset, snapshot), room=8)
    pen.right(40 + shift, thousands(preset.generation_tokens_per_s), room=6)
    pen.right(47 + shift, thousands(preset.effective_tokens_per_s), room=6)
    pen.right(57 + shift, _left(preset, snapshot), room=9)
    return pen.line()


def _fit(preset: PresetSummary, snapshot: Snapshot) -> str:
    """Return how many requests would decode at once: the law is linear in the pool."""
    run, server = snapshot.run, snapshot.server
    if run is None or run.fit_at_mean is None or server is None or preset.pool_tokens is None:
        return MISSING
    pool = server.decode.pool_tokens.value
    return f"~{run.fit_at_mean * preset.pool_tokens / pool:.0f}" if pool else MISSING


def _left(preset: PresetSummary, snapshot: Snapshot) -> str:
    """Return what the open partition would still take at the preset's measured rate."""
    part = open_partition(snapshot.run)
    if part is None or part.remaining_s is None:
        return MISSING
    if preset.is_running:
        return hours(part.remaining_s)
    now, then = part.effective_tokens_per_s.value, preset.effective_tokens_per_s
    return hours(part.remaining_s * now / then) if now and then else MISSING
