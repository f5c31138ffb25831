"""Full-screen pages: why, help, palette, launches, log; each a frame with a cursor or scroll."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvctl.core.domain.snapshot import OperatingPoint, Snapshot
from kvctl.core.domain.units import duration, thousands
from kvctl.tui.actions import ACTIONS, DIALOG_KEYS, Action
from kvctl.tui.present import verdict
from kvctl.tui.present.box import entry_line
from kvctl.tui.present.figures import MISSING
from kvctl.tui.present.line import Ink, Line, Pen, blank, fitted, plain, rule, sided
from kvctl.tui.present.text import wrap
from kvctl.tui.present.view import View


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows: title, lines of the inner width, and the keys at its foot."""

    title: str
    lines: Sequence[Line]
    keys: str
    first: int = 0
    """Line at the top."""
    entry: Line | None = None
    """A typed field above the lines."""


def framed(page: Page, columns: int, rows: int) -> list[Line]:
    """Return the page in a frame that fills the screen."""
    inner = columns - 2
    head = [page.entry] if page.entry is not None else []
    room = max(0, rows - 3 - len(head))
    first = max(0, min(page.first, len(page.lines) - room))
    shown = fitted(page.lines[first : first + room], room, inner)
    foot = plain(columns, f" {page.keys}", Ink.DIM)
    top = rule(columns, page.title, "┌┐")
    drawn = [top, *sided([*head, *shown], columns), rule(columns, "", "└┘"), foot]
    return fitted(drawn, rows, columns)


def why_lines(snapshot: Snapshot, view: View, columns: int) -> list[Line]:
    """Return the verdict in full, then each number behind it with its source."""
    current = verdict.current(snapshot, view)
    drawn = [plain(columns, f" {current.word.value}", Ink.BOLD)]
    drawn += [plain(columns, f" {text}") for text in wrap(current.sentence, columns - 2)]
    drawn += [plain(columns, f" {text}") for text in wrap(f"→ {current.lever}", columns - 2)]
    drawn.append(blank(columns))
    for why in current.why:
        drawn += _why_line(why.label, why.value, why.source, columns)
    if not current.why:
        drawn.append(plain(columns, " No arithmetic: the sentence is what was observed.", Ink.DIM))
    return drawn + _sources(snapshot, columns) + _missing(snapshot, columns)


def _why_line(label: str, value: str, source: str, columns: int) -> list[Line]:
    middle = 24 if columns >= 60 else 14
    texts = wrap(value, max(10, columns - middle - 22)) or [""]
    drawn = []
    for number, text in enumerate(texts):
        pen = Pen(columns)
        pen.put(1, label if number == 0 else "", Ink.PLAIN, middle - 2)
        pen.put(middle, text, Ink.BOLD)
        if number == 0:
            pen.right(columns - 1, source, Ink.DIM, 20)
        drawn.append(pen.line())
    return drawn


def _sources(snapshot: Snapshot, columns: int) -> list[Line]:
    """Return what each source says of a figure that several tell, disagreements first."""
    decode = snapshot.server.decode if snapshot.server else None
    compared = decode.sources if decode else ()
    if decode is None or not compared:
        return []
    drawn = [blank(columns), plain(columns, " Sources", Ink.DIM)]
    if decode.imbalance:
        drawn += _why_line("DP ranks", decode.imbalance, "", columns)
    for found in sorted(compared, key=lambda c: c.problem is None):
        label = found.figure.removesuffix("_tokens_per_s").replace("_", " ")
        if found.problem is not None:
            drawn += _why_line(f"{label}: disagree", found.problem, "", columns)
        for number, told in enumerate(found.told):
            over = "" if told.over == "now" else f", {told.over}"
            source = f"{told.source}{over}" if told.over not in told.source else told.source
            value = f"{told.value:.2f}" if found.figure == "token_usage" else thousands(told.value)
            shown = "shown" if number == 0 else ""
            drawn += _why_line(label if number == 0 else "", f"{value}  {source}", shown, columns)
    return drawn + _unread(snapshot, columns)


def _unread(snapshot: Snapshot, columns: int) -> list[Line]:
    """Return how much of the log and of /metrics could not be read, where any was read."""
    decode = snapshot.server.decode if snapshot.server else None
    if decode is None or not decode.log_lines:
        return []
    told = f"{thousands(decode.unrecognised_lines)} of {thousands(decode.log_lines)} lines"
    bad = f"; {decode.bad_metric_lines} bad lines in /metrics" if decode.bad_metric_lines else ""
    return _why_line("not recognised", f"{told}{bad}", "log", columns)


def _missing(snapshot: Snapshot, columns: int) -> list[Line]:
    """Return which figures are missing and why."""
    server = snapshot.server
    if server is None:
        return []
    decode = server.decode
    rows = (
        ("KV pool", decode.token_usage),
        ("generation", decode.generation_tokens_per_s),
        ("effective", decode.effective_tokens_per_s),
        ("retracted", decode.retracted_per_min),
        ("queue wait", decode.queue_wait_s),
    )
    gone = [(label, figure.reason or "unknown") for label, figure in rows if not figure.known]
    if not gone:
        return []
    head = [blank(columns), plain(columns, " Missing figures", Ink.DIM)]
    return head + [line for k, why in gone for line in _why_line(f"{k} –", why, "", columns)]


def help_lines(snapshot: Snapshot, view: View, columns: int, query: str) -> list[Line]:
    """Return every key that matches, with what it does or why it does not work now."""
    drawn = [
        line for action in matching(query) for line in _help_line(action, snapshot, view, columns)
    ]
    if not query:
        drawn += [blank(columns), plain(columns, " in dialogs", Ink.DIM)]
        drawn += [
            _key_line(shown, f"{name}: {text}", False, columns) for shown, name, text in DIALOG_KEYS
        ]
    return drawn or [plain(columns, " no key matches", Ink.DIM)]


def _help_line(action: Action, snapshot: Snapshot, view: View, columns: int) -> list[Line]:
    why = action.why_not(snapshot, view)
    if not action.shown:
        return []
    text = f"{action.help} Not now: {why}." if why else action.help
    return [
        _key_line(action.shown if number == 0 else "", part, bool(why), columns)
        for number, part in enumerate(wrap(text, columns - 15))
    ]


def _key_line(shown: str, text: str, is_dim: bool, columns: int) -> Line:
    pen = Pen(columns)
    pen.put(1, shown, Ink.DIM if is_dim else Ink.KEY, 12)
    pen.put(14, text, Ink.DIM if is_dim else Ink.PLAIN)
    return pen.line()


def matching(query: str) -> list[Action]:
    """Return the actions whose title, help or key matches every typed word."""
    words = query.lower().replace("-", " ").split()
    found = [a for a in ACTIONS if all(word in _haystack(a) for word in words)]
    return sorted(found, key=lambda action: _distance(action, words))


def _distance(action: Action, words: list[str]) -> int:
    """Return how far a match is: a word of the title begins so, the title has it, the help has."""
    if not words:
        return 0
    title = action.title.lower()
    if any(word.startswith(words[0]) for word in title.split()):
        return 0
    return 1 if words[0] in title else 2


def _haystack(action: Action) -> str:
    return f"{action.name.replace('_', ' ')} {action.title} {action.help} {action.shown}".lower()


def palette_page(
    snapshot: Snapshot, view: View, columns: int, query: str, cursor: tuple[int, int]
) -> Page:
    """Return the palette: `cursor` is (cursor in the text, chosen row)."""
    inner = columns - 2
    at, chosen = cursor
    lines = []
    for number, action in enumerate(matching(query)):
        pen = Pen(inner)
        why = action.why_not(snapshot, view)
        pen.put(1, action.title, Ink.DIM if why else Ink.PLAIN, 34)
        pen.put(36, action.shown, Ink.KEY, 10)
        pen.put(47, f"not now: {why}" if why else action.help, Ink.DIM)
        lines.append(pen.line().inked(Ink.CURSOR) if number == chosen else pen.line())
    entry = entry_line(query, at, inner, ": ")
    shown = lines or [plain(inner, " no command matches", Ink.DIM)]
    return Page("Commands", shown, "Enter run  ↑↓ choose  Esc back", max(0, chosen - 10), entry)


def compare_lines(snapshot: Snapshot, columns: int) -> list[Line]:
    """Return the measured operating points; the best steady effective rate is marked."""
    heads = ((30, "part"), (39, "running"), (47, "queued"), (54, "usage"), (63, "gen"),
             (72, "effective"), (83, "window"))  # fmt: skip
    shift = 0 if columns >= 96 else -8
    pen = Pen(columns)
    pen.put(3, "preset", Ink.DIM)
    for end, word in heads:
        pen.right(end + shift, word, Ink.DIM)
    best = max(
        (p.effective_tokens_per_s or 0 for p in snapshot.operating_points if p.steady), default=0
    )
    drawn = [pen.line()]
    drawn += [_point_line(p, best, shift, columns) for p in snapshot.operating_points]
    if not snapshot.operating_points:
        drawn.append(
            plain(columns, " Nothing was measured yet: a point needs a window of decoding.")
        )
    return [*drawn, blank(columns), plain(columns, " tok/s; > best steady effective rate", Ink.DIM)]


def _point_line(point: OperatingPoint, best: float, shift: int, columns: int) -> Line:
    pen = Pen(columns)
    is_best = point.steady and best > 0 and point.effective_tokens_per_s == best
    pen.put(1, ">" if is_best else " ", Ink.BOLD)
    pen.put(3, point.preset or MISSING, Ink.BOLD if is_best else Ink.PLAIN, 20 + shift)
    usage = MISSING if point.token_usage is None else f"{point.token_usage:.2f}"
    rates = (point.generation_tokens_per_s, point.effective_tokens_per_s)
    texts = ((30, point.partition), (39, thousands(point.running)), (47, thousands(point.queued)),
             (54, usage), (63, thousands(rates[0])), (72, thousands(rates[1])),
             (83, duration(point.window_s)))  # fmt: skip
    for end, text in texts:
        pen.right(end + shift, text)
    pen.put(
        85 + shift, "steady" if point.steady else "burst", Ink.PLAIN if point.steady else Ink.DIM
    )
    return pen.line()
