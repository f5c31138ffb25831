"""A Snapshot as lines of plain text for `kvctl status`, `gpus`, `run status` and `watch`; pure.

Text from outside passes `clean_line`: nothing in it can control the terminal or break a line.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from kvctl.core.cli.lines import UNKNOWN
from kvctl.core.cli.lines import one_line as one_line
from kvctl.core.cli.lines import table as table
from kvctl.core.cli.render_gpus import gpu_lines
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.runs.run import Partition, Run
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import OperatingPoint, Snapshot
from kvctl.core.domain.units import day_time, duration, gib, thousands

_PAST_UNITS = {
    "generation": "tok/s",
    "effective": "tok/s",
    "retracted": "/min",
    "answer": "s",
    "length": "tok",
}


PARTITION_COLUMNS = (
    "partition", "state", "done", "total", "failed", "flight", "tokens", "mean", "left"
)  # fmt: skip


def status_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield the whole picture on one page."""
    simulated = "  SIMULATED" if snapshot.is_simulated else ""
    yield f"{one_line(snapshot.host)}  kvctl {snapshot.version}{simulated}"
    for verdict in snapshot.verdicts[:3]:
        yield one_line(f"{verdict.word.value}  {verdict.sentence}  {verdict.lever}".rstrip())
    if snapshot.busy_command:
        yield one_line(f"now: {snapshot.busy_command}")
    for server in snapshot.servers or ():
        yield ""
        yield from server_lines(server)
    if not snapshot.servers:
        yield "no server: `kvctl server start PRESET` launches one, `server adopt URL` watches one"
    yield ""
    yield from run_lines(snapshot)
    yield ""
    yield from gpu_lines(snapshot)


def server_lines(server: Server) -> Iterator[str]:
    """Yield what one server is and how it decodes."""
    facts = (
        f"preset {server.preset}" if server.preset else "",
        server.model or "",
        f"TP {server.tp_size}" if server.tp_size else "",
        f"DP {server.dp_size}" if (server.dp_size or 1) > 1 else "",
        f"sglang {server.version}" if server.version else "",
        f"owner {server.owner}" if server.owner else "",
    )
    reason = f" ({server.state_reason})" if server.state_reason else ""
    yield one_line(f"server {server.name}  {server.state.value}{reason}  {server.url}")
    if any(facts):
        yield one_line("  " + "  ".join(fact for fact in facts if fact))
    yield f"  {decode_line(server)}"
    if server.failure:
        yield one_line(f"  failed: {server.failure.headline}")
        yield from (one_line(f"  - {advice}") for advice in server.failure.advice)


def decode_line(server: Server) -> str:
    """Return the decode figures of a server in one line; unknown is a dash, never 0."""
    decode = server.decode
    usage = "" if decode.token_usage.value is None else f"{decode.token_usage.value:.2f}"
    return (
        f"running {_whole(decode.running)}  queued {_whole(decode.queued)}  "
        f"token usage {usage or UNKNOWN}  pool {_whole(decode.pool_tokens)} tokens  "
        f"generation {_whole(decode.generation_tokens_per_s)} tok/s  "
        f"effective {_whole(decode.effective_tokens_per_s)} tok/s"
    )


def run_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield the run and its partitions."""
    run = snapshot.run
    if run is None:
        yield "no run: `kvctl run start FILE` starts one"
        return
    yield one_line(run_line(run))
    if run.reason:
        yield one_line(f"  {run.reason}")
    yield f"  {remaining(run, snapshot.wall)}  output {one_line(run.output)}"
    yield from table(PARTITION_COLUMNS, [partition_row(partition) for partition in run.partitions])


def remaining(run: Run, wall: float) -> str:
    """Return what is left of a run and when it is done, or why that is not known."""
    if run.remaining_s is None:
        word = "not yet known" if run.is_sending else UNKNOWN
        why = f" ({run.remaining_reason})" if run.remaining_reason else ""
        return one_line(f"remaining {word}{why}")
    text = f"remaining {duration(run.remaining_s)}"
    if run.remaining_low_s is not None and run.remaining_high_s:
        text += f" ({duration(run.remaining_low_s)} to {duration(run.remaining_high_s)})"
    return f"{text}  done about {day_time(run.done_wall, wall)}" if run.done_wall else text


def run_line(run: Run) -> str:
    """Return where a run stands in one line."""
    mode = "AUTO" if run.is_auto else "MANUAL"
    failed = f"  failed {thousands(run.failed)}" if run.failed else ""
    held = " (held)" if run.is_held else ""
    return (
        f"run {run.name}  {run.state.value}  {thousands(run.done)} of {thousands(run.total)}"
        f"{failed}  slots {run.target} {mode}{held}  in flight {run.in_flight}"
    )


def operating_point_lines(points: Sequence[OperatingPoint]) -> Iterator[str]:
    """Yield measured operating points, each with its window and whether it was steady."""
    head = ("part", "preset", "running", "queued", "usage", "gen tok/s", "eff tok/s", "window", "")
    yield from table(head, [_point_row(point) for point in points])


def watch_line(snapshot: Snapshot) -> str:
    """Return one moment in one line."""
    verdict = snapshot.verdicts[0].word.value if snapshot.verdicts else UNKNOWN
    server = snapshot.server
    parts = [day_time(snapshot.wall, snapshot.wall), verdict]
    if server is not None:
        parts += [server.state.value, decode_line(server)]
    if snapshot.run is not None:
        parts.append(run_line(snapshot.run))
    return one_line("  ".join(parts))


def past_line(wall: float, values: Mapping[str, float | None]) -> str:
    """Return one step of the history in one line."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))
    parts = [f"{name} {_past_value(name, value)}" for name, value in values.items()]
    return one_line("  ".join([moment, *parts]))


def facts(snapshot: Snapshot) -> dict[str, str]:
    """Return every fact by its name, to be read aloud one a line where it changed."""
    found: dict[str, str] = {}
    if snapshot.verdicts:
        verdict = snapshot.verdicts[0]
        found["verdict"] = f"{verdict.word.value}: {verdict.sentence}"
    for server in snapshot.servers:
        name = f"server {server.name}"
        found[f"{name} state"] = server.state.value
        found[f"{name} running"] = _whole(server.decode.running)
        found[f"{name} queued"] = _whole(server.decode.queued)
        usage = server.decode.token_usage.value
        found[f"{name} token usage"] = UNKNOWN if usage is None else f"{usage:.2f}"
    if run := snapshot.run:
        found[f"run {run.name} state"] = run.state.value
        found[f"run {run.name} slots"] = str(run.target)
        for partition in run.partitions:
            done = f"{partition.done} of {partition.total} done, {partition.failed} failed"
            found[f"partition {partition.name}"] = done
    for device in snapshot.gpus.devices:
        used = gib(device.memory_used_bytes.value)
        found[f"GPU {device.index}"] = device.problem or f"{used} used"
    return {one_line(name): one_line(value) for name, value in found.items()}


def _past_value(name: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    text = f"{value:.2f}" if name == "pool" else thousands(value)
    return f"{text} {_PAST_UNITS[name]}" if name in _PAST_UNITS else text


def _whole(figure: Figure) -> str:
    return thousands(figure.value)


def partition_row(partition: Partition) -> tuple[str, ...]:
    """Return where a partition stands, by `PARTITION_COLUMNS`."""
    rough = "~" if partition.is_estimate_rough and partition.remaining_s is not None else ""
    return (
        one_line(partition.name),
        partition.state.value,
        thousands(partition.done),
        thousands(partition.total),
        thousands(partition.failed),
        str(partition.in_flight),
        thousands(partition.tokens),
        thousands(partition.mean_tokens),
        rough + duration(partition.remaining_s),
    )


def _point_row(point: OperatingPoint) -> tuple[str, ...]:
    usage = UNKNOWN if point.token_usage is None else f"{point.token_usage:.2f}"
    return (
        one_line(point.partition),
        one_line(point.preset or UNKNOWN),
        thousands(point.running),
        thousands(point.queued),
        usage,
        thousands(point.generation_tokens_per_s),
        thousands(point.effective_tokens_per_s),
        duration(point.window_s),
        "steady" if point.steady else "not steady",
    )
