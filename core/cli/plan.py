"""`kvctl plan`: presets side by side before a restart, as kvctld and the panel show them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kvctl.core.cli.lines import UNKNOWN, one_line, table
from kvctl.core.cli.progress import tell_outcome
from kvctl.core.cli.session import Session
from kvctl.core.controller.commands import PlanPresets
from kvctl.core.domain.capacity.prediction import EXACT_RATIO, Interval
from kvctl.core.domain.launches.plan import Part, Planned
from kvctl.core.domain.units import duration, gib, kilo_tokens, thousands


def show_plan(session: Session) -> int:
    """Print what each preset would bring: pool, requests at once, fit, rate, time of the run."""
    with session.kvctld() as client:
        if not session.words.presets:
            session.picture(client)  # just after a start the GPUs are read first
        outcome = client.submit(_command(session))
    if not outcome.is_done:
        return tell_outcome(session, outcome)
    rows = outcome.data["presets"]
    planned = msgspec.convert(rows, tuple[Planned, ...])
    if session.wants_json():
        pairs = zip(rows, planned, strict=True)
        session.document({"presets": [{**row, "may_start": p.may_start} for row, p in pairs]})
        return 0
    for line in _lines(planned):
        session.say(line)
    return 0


def _command(session: Session) -> PlanPresets:
    words = session.words
    wanted: str | None = getattr(words, "run", None)
    is_file = wanted is not None and Path(wanted).exists()
    run = str(Path(wanted).absolute()) if wanted is not None and is_file else wanted
    return PlanPresets(tuple(words.presets), run, tuple(words.lengths or ()))


def _lines(planned: Sequence[Planned]) -> Iterator[str]:
    yield from table(plan_columns(planned), [plan_row(one) for one in planned])
    if planned and planned[0].parts:
        yield ""
        yield "  of each partition: requests that decode at once, N = C u / k (pool over length)"
    for one in planned:
        yield ""
        yield from _reasons(one)


def plan_columns(planned: Sequence[Planned]) -> tuple[str, ...]:
    """Return what stands over the columns of `plan_row`."""
    parts = planned[0].parts if planned else ()
    return ("preset", "KV tokens", *(_head(part) for part in parts), "gen tok/s", "run left",
            "GPU memory", "host memory", "may start")  # fmt: skip


def _head(part: Part) -> str:
    if part.mean_tokens is None or part.name.endswith("tokens"):
        return one_line(part.name, 24)
    return one_line(f"{part.name} at {kilo_tokens(part.mean_tokens)}", 24)


def plan_row(planned: Planned) -> tuple[str, ...]:
    """Return what one preset would bring."""
    refused = "refused" if planned.refused else "not here" if planned.problem else ""
    return (
        one_line(planned.name),
        pool_text(planned.pool),
        *(_part_text(part) for part in planned.parts),
        _rates(planned.parts),
        duration(planned.left_s),
        {True: "fits", False: "does not fit", None: UNKNOWN}[planned.fits],
        _host(planned),
        refused or ("yes" if planned.may_start else "no"),
    )


def pool_text(pool: Interval | None) -> str:
    """Return a predicted pool with its interval: "159K ±3 %"."""
    if pool is None:
        return UNKNOWN
    ratio = pool.error_ratio
    exact = ratio is not None and ratio < EXACT_RATIO
    return kilo_tokens(pool.expected) + ("" if ratio is None or exact else f" ±{ratio:.1%}")


def _part_text(part: Part) -> str:
    if part.steady is None:
        return UNKNOWN
    plain = "" if part.plain is None else f" ({part.plain})"
    return f"~{part.steady.expected:.0f}{plain}"


def _rates(parts: Sequence[Part]) -> str:
    """Return the rate of each partition, once where they agree."""
    rates = [None if part.rate is None else round(part.rate.expected) for part in parts]
    texts = [thousands(rate) for rate in rates]
    return " ".join(dict.fromkeys(texts)) or UNKNOWN


def _host(planned: Planned) -> str:
    if planned.host_bytes is None:
        return ""
    word = {True: "fits", False: "does not fit", None: "free memory not known"}[planned.host_fits]
    return f"hicache {gib(planned.host_bytes)}, {word}"


def reason_of(planned: Planned) -> str:
    """Return why a preset is as it is in one line: what it lacks, or what decides its rate."""
    refused = f"refused, {planned.refused}; " if planned.refused else ""
    return one_line(f"{planned.name}: {refused}{planned.problem or planned.reason}", 400)


def _reasons(planned: Planned) -> Iterator[str]:
    yield reason_of(planned)
    if planned.problem:
        return
    source = planned.calibrated_by or "no launch of this model here yet: assumptions alone"
    yield one_line(f"  calibrated by {source}" if planned.calibrated_by else f"  {source}", 400)
    if planned.measured_tokens is not None:
        yield f"  its last launch had {thousands(planned.measured_tokens)} tokens"
    if planned.parts:
        yield one_line(f"  rates from {planned.rate_from}", 400)
    for note in planned.notes:
        yield one_line(f"  {note}", 400)
