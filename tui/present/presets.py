"""Pane 5, presets: what a restart would bring, from the last launches on this host."""

from kvctl.core.domain.capacity.prediction import EXACT_RATIO
from kvctl.core.domain.launches.plan import Part, Planned
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.snapshot import PresetSummary, Snapshot
from kvctl.core.domain.units import gib, kilo_tokens, thousands
from kvctl.tui.present.figures import MISSING, rounded_tokens
from kvctl.tui.present.line import Ink, Line, Pen, plain
from kvctl.tui.present.text import literal, width, wrap
from kvctl.tui.present.view import View
from kvctl.tui.present.words import about, hours, open_partition, short_paths

_NOTE = "tok/s steady; – never reached steady state"
_PLANNED_NOTE = "tok/s steady; ~ expected from other launches; – not known"


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
        if preset.needs:
            texts = wrap(needs_line(preset), columns - 6)
            drawn += [
                plain(columns, f"     {text}", Ink.DIM) for text in texts[: 3 if is_cursor else 1]
            ]
        if is_cursor:
            drawn += [
                plain(columns, f"     {text}", Ink.DIM)
                for reason in reasons(plan_of(snapshot, preset.name))
                for text in wrap(reason, columns - 6)
            ]
    if len(drawn) < height:
        note = _PLANNED_NOTE if snapshot.plans else _NOTE
        drawn.append(plain(columns, f" {note}", Ink.DIM))
    return drawn


def in_order(snapshot: Snapshot) -> list[PresetSummary]:
    """Return the presets as listed everywhere; last those without their variables, or broken."""
    return sorted(snapshot.presets, key=lambda p: (p.problem is not None, bool(p.needs)))


def needs_line(preset: PresetSummary) -> str:
    """Return which variables are missing and what to do, "" if none is."""
    if not preset.needs:
        return ""
    return f"{needs_words(preset)}: e writes it into the file, or set it and restart kvctld"


def needs_words(preset: PresetSummary) -> str:
    """Return which variables are missing, "" if none is."""
    names = ", ".join(f"${name}" for name in preset.needs)
    return f"needs {names}" if names else ""


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
    planned = plan_of(snapshot, preset.name)
    tokens = pool_word(preset, planned, room=20 + shift - width(literal(preset.name)))
    room = 20 + shift - width(tokens)
    pen.put(3, preset.name, Ink.BOLD if preset.is_running else Ink.PLAIN, room)
    if preset.problem:
        start = 5 + width(literal(preset.name))
        pen.put(start, f"cannot be read: {short_paths(preset.problem)}", Ink.DIM)
        return pen.line()
    part = _open_part(planned, snapshot)
    pen.right(24 + shift, tokens, room=10)
    pen.right(33 + shift, _fit(preset, part, snapshot), room=8)
    pen.right(40 + shift, _generation(preset, part), room=6)
    pen.right(47 + shift, thousands(preset.effective_tokens_per_s), room=6)
    pen.right(57 + shift, _left(preset, part, snapshot), room=9)
    return pen.line()


def plan_of(snapshot: Snapshot, name: str) -> Planned | None:
    """Return what a restart with a preset would bring, None before kvctld has worked it out."""
    return next((planned for planned in snapshot.plans if planned.name == name), None)


def pool_word(preset: PresetSummary, planned: Planned | None, room: int = 99) -> str:
    """Return the pool: as this very launch had it, else as expected, "~159K ±3%".

    Where `room` columns do not hold the interval it is left out.
    """
    if planned is None:
        return rounded_tokens(preset.pool_tokens)
    if planned.measured_tokens is not None or planned.pool is None:
        return rounded_tokens(planned.measured_tokens or preset.pool_tokens)
    ratio = planned.pool.error_ratio
    within = f" ±{ratio:.0%}" if ratio is not None and ratio >= EXACT_RATIO else ""
    expected = f"~{kilo_tokens(planned.pool.expected)}"
    return expected + within if width(expected + within) <= room else expected


def reasons(planned: Planned | None) -> list[str]:
    """Return what a plan rests on, a sentence each."""
    if planned is None:
        return []
    source = planned.calibrated_by
    told = [planned.reason]
    told.append(f"calibrated by {source}" if source else "not calibrated: assumptions alone")
    if planned.fits is False:
        told.append("it does not fit into GPU memory")
    if planned.host_fits is False:
        free = gib(planned.host_available_bytes)
        told.append(f"hicache takes {gib(planned.host_bytes)} of host memory, {free} are free")
    return [*told, f"rates from {planned.rate_from}"]


def _open_part(planned: Planned | None, snapshot: Snapshot) -> Part | None:
    part = open_partition(snapshot.run)
    if planned is None or part is None:
        return None
    return next((found for found in planned.parts if found.name == part.name), None)


def _fit(preset: PresetSummary, part: Part | None, snapshot: Snapshot) -> str:
    """Return how many requests would decode at once, N = C u / k."""
    if part is not None and part.steady is not None:
        return f"~{part.steady.expected:.0f}"
    run, server = snapshot.run, snapshot.server
    if run is None or run.fit_at_mean is None or server is None or preset.pool_tokens is None:
        return MISSING
    pool = server.decode.pool_tokens.value
    return f"~{run.fit_at_mean * preset.pool_tokens / pool:.0f}" if pool else MISSING


def _generation(preset: PresetSummary, part: Part | None) -> str:
    if preset.generation_tokens_per_s is not None or part is None or part.rate is None:
        return thousands(preset.generation_tokens_per_s)
    return f"~{thousands(part.rate.expected)}"


def _left(preset: PresetSummary, part: Part | None, snapshot: Snapshot) -> str:
    """Return what the open partition would still take under the preset."""
    now = open_partition(snapshot.run)
    if preset.is_running and now is not None and now.remaining_s is not None:
        return hours(now.remaining_s)
    if part is not None and part.left_s is not None:
        return about(part.left_s)
    if now is None or now.remaining_s is None:
        return MISSING
    rate, then = now.effective_tokens_per_s.value, preset.effective_tokens_per_s
    return hours(now.remaining_s * rate / then) if rate and then else MISSING
