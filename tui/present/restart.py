"""The restart dialog: presets, what changes, preflight, what happens to the run; then stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvctl.core.controller.commands import WaitHow
from kvctl.core.domain.servers.server import Server, ServerState, StageState
from kvctl.core.domain.snapshot import PresetSummary, Snapshot
from kvctl.core.domain.units import duration, kilo_tokens
from kvctl.tui.present import stages
from kvctl.tui.present.box import Box, Option
from kvctl.tui.present.check import Check, CheckLine
from kvctl.tui.present.failure import way_back
from kvctl.tui.present.line import Ink, Line, Pen, beside, fitted, plain, widened
from kvctl.tui.present.presets import in_order, needs_words, plan_of, pool_word
from kvctl.tui.present.text import literal, width, wrap, wrap_most
from kvctl.tui.present.words import short_paths

MARKS = {"ok": ("✓", Ink.GOOD), "warn": ("!", Ink.WARN), "fail": ("✗", Ink.BAD)}
LIST_WIDTH = 32
_NARROW = 70
_GOES_ON = "Esc to the overview (goes on)   X cancel this start"
_AHEAD = (StageState.TODO, StageState.DOING)


@dataclass(slots=True)
class RestartState:
    """What the dialog holds while it is open."""

    is_start: bool
    """No server runs: this starts one."""
    chosen: int = 0
    """Preset in the list."""
    way: int = 0
    """How the run waits, in `WAYS`."""
    focus: int = 0
    """Button: 0 Cancel, 1 go."""
    check: Check | None = None
    """None until the checks of the chosen preset have answered."""
    is_awake: bool = False
    """Half a second has passed."""
    cuts_foreign: bool = False
    said: str = ""
    """Why the last key did nothing."""


WAYS = (WaitHow.HARVEST, WaitHow.DRAIN, WaitHow.ABANDON)


def preset_at(snapshot: Snapshot, state: RestartState) -> PresetSummary | None:
    """Return the chosen preset."""
    if not snapshot.presets:
        return None
    return in_order(snapshot)[state.chosen % len(snapshot.presets)]


def why_not_yet(snapshot: Snapshot, state: RestartState) -> str:
    """Return why y does nothing now, "" if it goes."""
    preset = preset_at(snapshot, state)
    if preset is None:
        return "there is no preset; kvctl presets list says where they are looked for"
    if state.check is None or state.check.preset != preset.name:
        return "the checks have not answered yet"
    if not state.check.is_passed:
        return f"refused: {state.check.message or 'a check failed'}"
    if not state.is_awake:
        return "one moment: y works half a second after opening"
    if foreign_count(snapshot) and not state.is_start and not state.cuts_foreign:
        return "requests that are not this run's would be cut; f agrees to that"
    return ""


def foreign_count(snapshot: Snapshot) -> int:
    """Return requests on the server that are not the run's own."""
    server = snapshot.server
    return int(server.foreign_requests.value or 0) if server else 0


def preflight(snapshot: Snapshot, state: RestartState, columns: int, rows: int) -> list[Line]:
    """Return the dialog before anything is touched, in at most `rows` lines."""
    for detail in (3, 2, 1, 0):
        drawn = _preflight(snapshot, state, columns, detail)
        if len(drawn) <= rows:
            break
    return drawn


def _preflight(snapshot: Snapshot, state: RestartState, columns: int, detail: int) -> list[Line]:
    box = Box(columns)
    box.section(_title(snapshot, state))
    _top(box, snapshot, state, detail)
    check = state.check
    if check is not None and (check.brings or (check.calibrated and detail >= 3)) and detail >= 2:
        box.section("What it brings")
        for text in check.brings[:2]:
            box.text(text, most=1)
        if check.calibrated and detail >= 3:
            box.text(check.calibrated, Ink.DIM, 1)
    _checks(box, check, detail)
    if not state.is_start:
        _run_section(box, snapshot, state, detail)
    if check is not None and check.time and detail >= 1:
        box.section("Time")
        box.text(check.time, most=1)
    if state.said:
        box.text(state.said, Ink.WARN, 1)
    verb = "Start" if state.is_start else "Restart"
    keys = f"↑↓ preset  m how  y {verb.lower()}  Esc leave"
    box.buttons(("Cancel", verb), state.focus, keys)
    return box.end()


def _title(snapshot: Snapshot, state: RestartState) -> str:
    preset = preset_at(snapshot, state)
    after = preset.name if preset else "no preset"
    server = snapshot.server
    if state.is_start or server is None:
        return f"Start ── {after} ── nothing has been touched yet"
    return f"Restart ── {server.preset or server.name} → {after} ── nothing has been touched yet"


def _top(box: Box, snapshot: Snapshot, state: RestartState, detail: int) -> None:
    """Add the presets and, right of them (below on narrow screens), what changes."""
    if box.inner < _NARROW:
        width_ = min(LIST_WIDTH, box.inner)
        box.lines([widened(line, box.inner) for line in _preset_list(snapshot, state, 0, width_)])
        box.lines(_changes(state.check, box.inner, 2 + detail))
        return
    right_width = box.inner - LIST_WIDTH - 1
    left = _preset_list(snapshot, state, detail, LIST_WIDTH)
    right = _changes(state.check, right_width, 8 if detail >= 2 else 4)
    height = max(len(left), len(right))
    side = [plain(1, "│", Ink.FRAME)] * height
    joined = beside(fitted(left, height, LIST_WIDTH), side)
    box.lines(beside(joined, fitted(right, height, right_width)))


def _preset_list(snapshot: Snapshot, state: RestartState, detail: int, columns: int) -> list[Line]:
    head = Pen(columns)
    head.put(1, "Presets", Ink.DIM)
    head.right(columns - 1, "KV tokens", Ink.DIM)
    drawn = [head.line()]
    for number, preset in enumerate(in_order(snapshot)):
        is_chosen = number == state.chosen % len(snapshot.presets)
        drawn.append(_preset_line(preset, is_chosen, snapshot, columns))
        reason = preset.problem or preset.refused or (needs_words(preset) if is_chosen else "")
        if reason and (is_chosen or (detail >= 2 and not preset.problem)):
            texts = wrap(short_paths(reason), columns - 6)[: 3 if is_chosen else 1]
            drawn += [plain(columns, f"     {text}", Ink.DIM) for text in texts]
    return drawn


def _preset_line(preset: PresetSummary, is_chosen: bool, snapshot: Snapshot, columns: int) -> Line:
    pen = Pen(columns)
    if is_chosen:
        pen.put(1, ">", Ink.BOLD)
    name = f"{literal(preset.name)}{'  runs now' if preset.is_running else ''}"
    word = _preset_word(preset, snapshot, columns - 5 - width(name))
    pen.right(columns - 1, word)
    room = columns - 5 - width(word)
    pen.put(3, name, Ink.BOLD if is_chosen else Ink.PLAIN, room)
    return pen.line()


def _preset_word(preset: PresetSummary, snapshot: Snapshot, room: int) -> str:
    if preset.problem:
        return "unreadable"
    if preset.refused:
        return "refused"
    if preset.needs:
        return "needs a variable"
    return pool_word(preset, plan_of(snapshot, preset.name), room)


def _changes(check: Check | None, columns: int, most: int) -> list[Line]:
    name_room = columns - 36 if columns >= 60 else max(6, columns - 28)
    now, after = name_room + 2, name_room + 2 + (columns - name_room - 2) // 2
    head = Pen(columns)
    for column, word in ((1, "What changes"), (now, "now"), (after, "after")):
        head.put(column, word, Ink.DIM)
    drawn = [head.line()]
    if check is None:
        return [*drawn, plain(columns, " the checks are running …", Ink.DIM)]
    for change in check.changes[:most]:
        pen = Pen(columns)
        pen.put(1, change.flag, Ink.PLAIN, name_room)
        pen.put(now, change.now, Ink.PLAIN, after - now - 1)
        suffix = " (env)" if change.kind == "env" else ""
        pen.put(after, change.after + suffix, Ink.BOLD)
        drawn.append(pen.line())
    hidden = len(check.changes) - most
    if hidden > 0:
        drawn.append(plain(columns, f" and {hidden} more", Ink.DIM))
    if check.same is not None:
        drawn.append(plain(columns, f" {check.same} other settings stay the same", Ink.DIM))
    elif not check.changes:
        drawn.append(plain(columns, " nothing", Ink.DIM))
    return drawn


def _checks(box: Box, check: Check | None, detail: int) -> None:
    if check is None:
        box.section("Preflight ── running")
        return
    counts = {ok: sum(line.ok == ok for line in check.lines) for ok in MARKS}
    box.section("Preflight ── " + "  ".join(f"{n} {MARKS[ok][0]}" for ok, n in counts.items()))
    good = [line for line in check.lines if line.ok == "ok"]
    if detail >= 1:
        box.lines(_packed(good, box.inner, 3 if box.inner >= 96 else 2))
    for line in check.lines:
        if line.ok != "ok":
            _loud(box, line, 3 if detail else 1)
    if not check.lines:
        box.text(check.message or "no check answered", Ink.BAD if check.exit_status else Ink.PLAIN)


def _packed(good: Sequence[CheckLine], columns: int, across: int) -> list[Line]:
    """Return passed checks in columns; one that is too long takes a line of its own."""
    room = (columns - 1) // across
    drawn: list[Line] = []
    pen, used = Pen(columns), 0
    for line in sorted(good, key=lambda item: width(item.words) + 4 > room):
        is_long = width(line.words) + 4 > room
        if used and (used == across or is_long):
            drawn.append(pen.line())
            pen, used = Pen(columns), 0
        column = pen.put(1 + used * room, "✓ ", Ink.GOOD)
        pen.put(column, line.words, Ink.PLAIN, columns - 5 if is_long else room - 4)
        used = across if is_long else used + 1
    return [*drawn, pen.line()] if used else drawn


def _loud(box: Box, line: CheckLine, most: int) -> None:
    mark, ink = MARKS.get(line.ok, MARKS["warn"])
    texts = wrap_most(short_paths(line.words), box.inner - 5, most)
    for number, text in enumerate(texts):
        pen = Pen(box.inner)
        pen.put(1, mark if number == 0 else "", ink)
        pen.put(3, text, Ink.BOLD if line.ok == "fail" else Ink.PLAIN)
        box.lines([pen.line()])


def _run_section(box: Box, snapshot: Snapshot, state: RestartState, detail: int) -> None:
    run = snapshot.run
    if run is None:
        box.section("The run ── none is open")
    else:
        box.section(f"The run {run.name} ── {run.in_flight} in flight")
        options = way_options(snapshot, state.check)
        if detail == 0:
            options = [options[state.way]]
        box.options(options, state.way if detail else 0)
    foreign = foreign_count(snapshot)
    if foreign:
        agreed = "will be cut, as you agreed" if state.cuts_foreign else "f agrees to cut them"
        box.text(f"! {foreign:,} requests are not this run's: {agreed}", Ink.WARN, 1)


def way_options(snapshot: Snapshot, check: Check | None) -> list[Option]:
    """Return what can happen to the answers in flight, with the cost of each."""
    run = snapshot.run
    count = run.in_flight if run else 0
    made = run.in_flight_tokens if run else 0.0
    tokens = f", ~{kilo_tokens(made)} tokens," if made and count else ""
    answer = run.mean_answer_s if run else None
    wait = f"~{duration(answer)}" if answer else ""
    texts = {
        "harvest": (f"keeps {count} partial answers{tokens} to be continued", "seconds"),
        "drain": (f"waits for all {count}, no token redone", wait),
        "abandon": (f"throws {count} partial answers away; their prompts start again", "~0 s"),
    }  # fmt: skip
    if check is not None:
        texts.update({k: v for k, v in check.how.items() if k in texts})
    return [Option(way.value, *texts[way.value]) for way in WAYS]


def running(snapshot: Snapshot, columns: int, rows: int, title: str, said: str = "") -> list[Line]:
    """Return the dialog while stages go on, each with its proof and time; `said` is the end."""
    server = snapshot.server
    box = Box(columns)
    if server is None:
        box.section(title)
        box.text(said or "waiting for the first step …", Ink.BOLD if said else Ink.DIM)
        return box.end()
    box.section(f"{title} ── step {stages.position(server)}{_elapsed(snapshot, server)}")
    wraps = rows >= len(server.stages) * 2 + 6
    for number, stage in enumerate(server.stages, 1):
        box.lines(stages.stage_lines(stage, number, snapshot, box.inner, wraps=wraps))
    if not server.stages:
        box.text("waiting for the first step …", Ink.DIM)
    box.section(f"pid {server.pid or '–'} ── log {_log(server)}")
    box.text(server.last_log_line or "no line yet", Ink.DIM, 1)
    if said:
        box.text(said, Ink.BOLD, 3)
    pen = Pen(box.inner)
    pen.right(box.inner - 1, _ways_out(snapshot, said), Ink.DIM)
    box.lines([pen.line()])
    return box.end()


def has_failed(snapshot: Snapshot, said: str) -> bool:
    """Return whether what was begun has ended with a server that failed."""
    server = snapshot.server
    return bool(said) and server is not None and server.state is ServerState.FAILED


def _ways_out(snapshot: Snapshot, said: str) -> str:
    """Return the keys that mean something now; after a failure the way back is first."""
    if has_failed(snapshot, said):
        good = way_back(snapshot)
        back = f"b back to {literal(good)}   " if good else ""
        return f"{back}w the card   l log   Esc to the overview"
    return "l log   Esc to the overview, or any of its keys" if said else f"l log   {_GOES_ON}"


def _elapsed(snapshot: Snapshot, server: Server) -> str:
    begun = [stage.started_at for stage in server.stages if stage.started_at is not None]
    ended = [stage.ended_at for stage in server.stages if stage.ended_at is not None]
    is_over = all(stage.state not in _AHEAD for stage in server.stages)
    until = max(ended) if ended and is_over else snapshot.at
    return f" ── {duration(until - min(begun))}" if begun else ""


def _log(server: Server) -> str:
    return server.log_path.rsplit("/", 1)[-1] if server.log_path else "–"
