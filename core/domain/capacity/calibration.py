"""What earlier launches of a model on this host teach about the next one's KV budget.

Pure. The budget at a fraction f is `rest = before * f - used`: the memory free before the weights,
and what weights and loading took of it. One launch gives both where its log is at hand, and the
budget at its own fraction exactly where no cap hid it; two launches at different fractions give
`before` without any assumption.

Source: profile_max_num_token (0.4.6 to 0.5.10), _profile_available_bytes (0.5.23); the lines
"Load weight begin/end", "Memory pool end" and "max_total_num_tokens" of a start.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvctl.core.domain.capacity.kv_cell import kv_cell, resolved_kv_dtype, value_bytes
from kvctl.core.domain.capacity.model_shape import ModelShape
from kvctl.core.domain.capacity.state_pool import whole_budget
from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.presets.serving_flags import ServingFlags
from kvctl.core.domain.units import GIB

JITTER_BYTES = 0.05 * GIB
"""How far two starts of one launch differ; seven on one H200 agreed within 0.01 GiB, several GPUs
are not measured."""
HOST_JITTER_BYTES = 0.25 * GIB
"""The same on the CPU, where other processes take and give back memory meanwhile; on a busy host
the weights' share of two starts differed by 0.25 GiB."""
OTHER_DTYPE_BYTES = 0.05 * GIB
OTHER_VERSION_BYTES = 0.5 * GIB
"""Error added where the earlier launch ran another KV dtype or another SGLang; assumed."""
BEFORE_OFFSET_BYTES = 0.07 * GIB
"""What is taken between the measurement that counts and "Load weight begin"; H200, 0.5.17."""
BEFORE_LOG_ERROR_BYTES = 0.1 * GIB
LOG_ERROR_BYTES = 0.01 * GIB
"""The log rounds to 0.01 GiB."""
_MIN_FRACTION_GAP = 0.008
"""Two launches closer than this say nothing about their slope."""


@dataclass(frozen=True, slots=True)
class ObservedLaunch:
    """What one start of a server showed."""

    model: str
    """Model path as launched."""
    flags: ServingFlags
    """As resolved: `mem_fraction` is set."""
    pool_tokens: int
    """max_total_num_tokens of one rank."""
    before_bytes: float | None = None
    """Free at "Load weight begin"; None where the log is not at hand."""
    after_bytes: float | None = None
    """Free at "Load weight end"."""
    free_bytes: float | None = None
    """Free when ready (available_gpu_mem)."""
    max_running: int | None = None
    pool_error_tokens: int = 0
    """How far `pool_tokens` may be off where it was rounded ("116 K": 500)."""
    label: str = ""
    """Which launch it was, for the operator."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes per GPU that are left for KV, with their error."""

    expected_bytes: float
    error_bytes: float


@dataclass(frozen=True, slots=True)
class Anchor:
    """The budget that one launch had at its own fraction."""

    launch: ObservedLaunch
    rest: Budget
    before: Budget | None
    """Free before load; None where only the pool was seen."""

    @property
    def fraction(self) -> float:
        """The launch's mem-fraction-static."""
        return self.launch.flags.mem_fraction or 0.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Anchors of one model on one host."""

    anchors: tuple[Anchor, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever launched."""
        return not self.anchors

    def nearest(self, flags: ServingFlags, fraction: float) -> Anchor | None:
        """Return the launch of equal weights and layout nearest to a fraction, None without."""
        alike = [a for a in self.anchors if _is_alike(a.launch.flags, flags)]
        return min(alike, key=lambda a: _distance(a, flags, fraction), default=None)

    def before(self, flags: ServingFlags, assumed: Budget) -> Budget:
        """Return the memory free before load: from a log, from two launches, or as assumed."""
        alike = [a for a in self.anchors if _is_alike(a.launch.flags, flags)]
        known = [assumed, *(a.before for a in alike if a.before is not None)]
        known += [slope for one in alike for other in alike if (slope := _slope(one, other))]
        return min(known, key=lambda budget: budget.error_bytes)


def observed_launch(
    model: str, flags: ServingFlags, records: Iterable[LogRecord]
) -> ObservedLaunch | None:
    """Return what a start's log shows, None without its final pool; ranks at their worst.

    `flags` must hold the fraction that was in force (`ServerInfo.flags` do).
    """
    found = _Start()
    for record in records:
        if record.kind is LogKind.STAGE:
            found.take(record)
    if not found.pools:
        return None
    return ObservedLaunch(
        model=model,
        flags=flags,
        pool_tokens=int(min(found.pools)),
        before_bytes=_bytes(min(found.before.values(), default=None)),
        after_bytes=_bytes(min(found.after.values(), default=None)),
        free_bytes=_bytes(found.free),
        max_running=None if found.running is None else int(found.running),
    )


class _Start:
    """Collects a start's figures: a draft loads after the model, so first and last count."""

    def __init__(self) -> None:
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}
        self.pools: list[float] = []
        self.free: float | None = None
        self.running: float | None = None

    def take(self, record: LogRecord) -> None:
        stage = f"{record.word_of('stage')} {record.word_of('edge')}"
        available = record.number_of("available_gb")
        pool = record.number_of("pool_tokens")
        if stage == "weights begin" and available is not None:
            self.before.setdefault(record.rank, available)
        elif stage == "weights end" and available is not None:
            self.after[record.rank] = available
        elif stage == "kv_pool end" and pool is not None:
            self.pools.append(pool)
            self.free = available
            self.running = record.number_of("max_running")


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB


def calibrate(shape: ModelShape, launches: Sequence[ObservedLaunch]) -> Calibration:
    """Return what launches of one model teach; those that say nothing are left out."""
    anchors = (_anchor(shape, launch) for launch in launches)
    return Calibration(tuple(anchor for anchor in anchors if anchor is not None))


def is_capped(launch: ObservedLaunch) -> bool:
    """Whether --max-total-tokens, not memory, decided the pool."""
    cap = launch.flags.max_total_tokens
    return cap is not None and launch.pool_tokens >= cap - launch.flags.page_tokens


def _anchor(shape: ModelShape, launch: ObservedLaunch) -> Anchor | None:
    fraction = launch.flags.mem_fraction
    if fraction is None or launch.pool_tokens <= 0:
        return None
    before = None
    if launch.before_bytes is not None:
        offset = 0.0 if launch.flags.is_cpu else BEFORE_OFFSET_BYTES
        before = Budget(launch.before_bytes + offset, BEFORE_LOG_ERROR_BYTES)
    rest = _rest(shape, launch, before, fraction)
    if rest is None:
        return None
    # A CPU start takes 0.16 GiB more between this line of its log and the cut of the pool.
    is_exact = not is_capped(launch) and not launch.flags.is_cpu
    if is_exact and launch.after_bytes is not None and not shape.is_multimodal and fraction < 0.99:
        # Exact: the slack is what is left of the free memory after the pool was cut from it.
        solved = (launch.after_bytes - rest.expected_bytes) / (1 - fraction)
        error = (LOG_ERROR_BYTES + rest.error_bytes) / (1 - fraction)
        if before is None or error < before.error_bytes:
            before = Budget(solved, error)
    return Anchor(launch, rest, before)


def _rest(
    shape: ModelShape, launch: ObservedLaunch, before: Budget | None, fraction: float
) -> Budget | None:
    if not is_capped(launch):
        cell = kv_cell(shape, launch.flags).cell_bytes(launch.flags.sliding_ratio)
        slack = launch.flags.page_tokens + 2 * launch.pool_error_tokens
        # The pool is rounded down to whole pages: half a page is the likeliest remainder.
        kv_bytes = (launch.pool_tokens + 0.5 * launch.flags.page_tokens) * cell
        whole = whole_budget(kv_bytes, shape, launch.flags)
        return Budget(whole, 0.5 * slack * cell * whole / kv_bytes)
    if launch.after_bytes is None or before is None:
        return None
    rest = launch.after_bytes - before.expected_bytes * (1 - fraction)
    return Budget(rest, LOG_ERROR_BYTES + before.error_bytes * (1 - fraction))


def _is_alike(one: ServingFlags, other: ServingFlags) -> bool:
    return (one.layout, one.weight_flags, one.is_cpu) == (
        other.layout,
        other.weight_flags,
        other.is_cpu,
    )


def _distance(anchor: Anchor, flags: ServingFlags, fraction: float) -> tuple[float, float]:
    own = anchor.launch.flags
    penalty = 0.0 if own.version == flags.version else 1.0
    return penalty + abs(anchor.fraction - fraction), anchor.rest.error_bytes


def _slope(one: Anchor, other: Anchor) -> Budget | None:
    """Return the memory before load from two budgets at different fractions."""
    gap = one.fraction - other.fraction
    if gap < _MIN_FRACTION_GAP or one.launch.flags.version != other.launch.flags.version:
        return None
    before = (one.rest.expected_bytes - other.rest.expected_bytes) / gap
    error = (one.rest.error_bytes + other.rest.error_bytes + JITTER_BYTES) / gap
    return Budget(before, error)


def has_other_kv_dtype(anchor: Anchor, shape: ModelShape, flags: ServingFlags) -> bool:
    """Whether the anchor's launch kept its KV in values of another size."""
    own = resolved_kv_dtype(shape, anchor.launch.flags)
    return value_bytes(own) != value_bytes(resolved_kv_dtype(shape, flags))


def other_launch_error(anchor: Anchor, shape: ModelShape, flags: ServingFlags) -> float:
    """Return the error of carrying a budget over to a launch with these flags."""
    own = anchor.launch.flags
    error = HOST_JITTER_BYTES if flags.is_cpu else JITTER_BYTES
    if has_other_kv_dtype(anchor, shape, flags):
        error += OTHER_DTYPE_BYTES
    return error + (OTHER_VERSION_BYTES if own.version != flags.version else 0.0)
