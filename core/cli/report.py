"""`kvctl report`: the decision memo in Markdown: what holds, what was measured, what would help.

Everything in it is what the other verbs show; nothing is worked out here.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kvctl.core.cli.launches import POINT_COLUMNS, point_row
from kvctl.core.cli.lines import markdown_table, one_line
from kvctl.core.cli.plan import plan_columns, plan_row, reason_of
from kvctl.core.cli.render import PARTITION_COLUMNS, partition_row, past_line, remaining, run_line
from kvctl.core.cli.session import Session
from kvctl.core.controller.commands import PlanPresets
from kvctl.core.controller.history_spans import spans
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.launches.launch import LaunchRecord, best_points
from kvctl.core.domain.launches.plan import Planned
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import day_time, duration, thousands
from kvctl.core.servers.ledger import Ledger

_HISTORY_S = 6 * 3600.0
_SPANS = 12
_EVENTS = 20


def report(session: Session) -> int:
    """Print the memo, or write it to the file that -o names."""
    with session.kvctld() as client:
        snapshot = session.picture(client)
        outcome = client.submit(PlanPresets((), None, ()))
    planned = msgspec.convert(outcome.data.get("presets", ()), tuple[Planned, ...])
    launches = Ledger(session.paths.state / "launches.jsonl").records()
    text = "\n".join(_memo(snapshot, planned, launches, session.paths.state)) + "\n"
    target: Path | None = session.words.output
    if target is None:
        session.say(text.rstrip("\n"))
        return 0
    _write(target, text)
    session.say(f"the report is in {target}")
    return 0


def _write(target: Path, text: str) -> None:
    """Replace the file as a whole. Raises KvctlError."""
    half = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(target)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise KvctlError(f"{target}: cannot be written: {error.strerror}") from error


def _memo(
    snapshot: Snapshot, planned: Sequence[Planned], launches: Sequence[LaunchRecord], state: Path
) -> Iterator[str]:
    moment = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(snapshot.wall))
    simulated = ", SIMULATED" if snapshot.is_simulated else ""
    yield f"# {one_line(snapshot.host)}, {moment}{simulated}"
    yield from _verdicts(snapshot)
    yield from _run(snapshot)
    yield from _points(launches)
    yield from _plans(planned)
    for server in snapshot.servers:
        yield from _server(server)
        yield from _past(server, snapshot.wall, state)
    yield from _events(snapshot)
    yield ""
    yield f"kvctl {snapshot.version}. A dash is what nobody knows; ~ is a prediction."


def _verdicts(snapshot: Snapshot) -> Iterator[str]:
    for verdict in snapshot.verdicts[:3]:
        yield ""
        yield one_line(f"**{verdict.word.value}** {verdict.sentence} {verdict.lever}".rstrip(), 400)
        if verdict.why:
            yield ""
        for why in verdict.why:
            yield one_line(f"- {why.label}: {why.value} ({why.source})", 400)


def _run(snapshot: Snapshot) -> Iterator[str]:
    run = snapshot.run
    yield from _title("The run")
    if run is None:
        yield "None is open."
        return
    yield one_line(f"{run_line(run)}; {remaining(run, snapshot.wall)}.", 400)
    yield ""
    yield from markdown_table(PARTITION_COLUMNS, [partition_row(p) for p in run.partitions])


def _points(launches: Sequence[LaunchRecord]) -> Iterator[str]:
    yield from _title("What was measured")
    points = [(launch, point) for launch in launches for point in best_points(launch)]
    if not points:
        yield "Nothing yet: no window of a launch has been measured."
        return
    yield "The longest steady window of each launch and partition, or the longest where none was."
    yield ""
    yield from markdown_table(POINT_COLUMNS, [point_row(*pair) for pair in points])


def _plans(planned: Sequence[Planned]) -> Iterator[str]:
    yield from _title("What each preset would bring")
    if not planned:
        yield "There is no preset."
        return
    yield from markdown_table(plan_columns(planned), [plan_row(one) for one in planned])
    yield ""
    yield from (f"- {reason_of(one)}" for one in planned)


def _server(server: Server) -> Iterator[str]:
    yield from _title(f"Server {one_line(server.name)}")
    preset = f"preset {server.preset}, " if server.preset else ""
    reason = f": {server.state_reason}" if server.state_reason else ""
    version = f"SGLang {server.version}, " if server.version else ""
    ready = f", ready after {duration(server.ready_after_s)}" if server.ready_after_s else ""
    yield one_line(
        f"{server.state.value}{reason}; {preset}{version}{server.url}"
        f", pool {thousands(server.decode.pool_tokens.value)} tokens{ready}",
        400,
    )
    told = [flag for flag in server.effective if flag.moves_ceiling or flag.given is not None]
    if told:
        yield ""
        yield one_line("Settings: " + ", ".join(f"`{f.name} {f.value}`" for f in told), 2000)


def _past(server: Server, wall: float, state: Path) -> Iterator[str]:
    rows = list(spans(state, server.name, wall - _HISTORY_S, wall, _SPANS))
    if rows:
        yield ""
        yield f"The last {duration(_HISTORY_S)}, means:"
        yield ""
        yield from (f"    {past_line(row.wall, row.values)}" for row in rows)


def _events(snapshot: Snapshot) -> Iterator[str]:
    yield from _title("Last events")
    for event in snapshot.events[-_EVENTS:]:
        moment = day_time(event.wall, snapshot.wall)
        yield one_line(f"- {moment} {event.kind}: {event.text}", 400)


def _title(text: str) -> Iterator[str]:
    yield ""
    yield f"## {text}"
    yield ""
