"""The KV pool that a launch would get, before it is launched: an interval, and what limits it.

Pure. Before any launch of the model the interval follows from assumed errors of the driver's
share and of the weights; after one it follows from what that launch showed.

Source: _profile_available_bytes and calculate_pool_sizes, 0.5.23; profile_max_num_token, 0.5.10.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.capacity.calibration import (
    Anchor,
    Budget,
    Calibration,
    has_other_kv_dtype,
    is_capped,
    other_launch_error,
)
from kvctl.core.domain.capacity.free_memory import GpuRoom, assumed_before
from kvctl.core.domain.capacity.hicache_need import HicacheNeed, hicache_need
from kvctl.core.domain.capacity.kv_cell import KvCell, kv_cell
from kvctl.core.domain.capacity.mem_fraction import MemFraction, mem_fraction
from kvctl.core.domain.capacity.model_shape import ModelShape
from kvctl.core.domain.capacity.model_weights import Weights, rank_weights
from kvctl.core.domain.capacity.running_cap import max_running
from kvctl.core.domain.capacity.state_pool import kv_part, state_slots, whole_budget
from kvctl.core.domain.presets.serving_flags import ServingFlags
from kvctl.core.domain.units import GIB, MIB, gib

_LOADING = Budget(0.1 * GIB, 0.1 * GIB)
_HOST_LOADING = Budget(0.06 * GIB, 0.12 * GIB)
"""What loading leaves behind beside the weights: 0.09 GiB on an H200, 0.03 to 0.16 on the CPU."""
_MULTIMODAL = Budget(0.6 * GIB, 0.6 * GIB)
"""Kept back for images, 0 to 1.1 GiB by version and transport."""
_TABLE_BYTES = 4
"""Of one entry of the request-to-token table."""


class LimitedBy(StrEnum):
    """What decides the pool."""

    MEMORY = "GPU memory"
    CAP = "max-total-tokens"
    WEIGHTS = "weights do not fit"
    WINDOW = "sliding window does not fit"
    UNKNOWN = "unknown"


EXACT_RATIO = 0.001
"""An interval narrower than this is not worth showing."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure that is known within bounds."""

    low: float
    expected: float
    high: float

    @property
    def error_ratio(self) -> float | None:
        """Half the width over the expected value ("±3 %"); None where that is 0."""
        return (self.high - self.low) / 2 / self.expected if self.expected > 0 else None

    def times(self, factor: float) -> "Interval":
        """Return the interval of a multiple."""
        return Interval(self.low * factor, self.expected * factor, self.high * factor)

    def holds(self, value: float) -> bool:
        """Whether a value lies inside."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a launch would bring."""

    pool: Interval | None
    """max_total_num_tokens of one pool; None where nothing is known to predict from."""
    sliding: Interval | None
    """Tokens of the sliding-window pool; None for models without one."""
    pools: int
    """Pools of that size (DP ranks)."""
    limited_by: LimitedBy
    reason: str
    """The arithmetic in one sentence, or why nothing is known."""
    cell_bytes: float
    """Bytes of one token on one GPU."""
    max_running: int | None = None
    """Of one pool, at the expected size."""
    slots: int | None = None
    """Request states of a hybrid model; None for others."""
    free: Interval | None = None
    """Bytes free per GPU when ready; None before a launch showed what graphs take."""
    hicache: HicacheNeed | None = None
    calibrated_by: str | None = None
    """The launch that calibrates it; None: from assumptions alone."""
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the launch gets a pool and room for its graphs; None where it may or may not."""
        if self.pool is None:
            return None
        bounds = [self.pool] if self.free is None else [self.pool, self.free]
        if any(bound.high <= 0 for bound in bounds):
            return False
        return True if all(bound.low > 0 for bound in bounds) else None

    @property
    def total(self) -> Interval | None:
        """Tokens of all pools."""
        return None if self.pool is None else self.pool.times(self.pools)


def predict_pool(
    shape: ModelShape,
    flags: ServingFlags,
    room: GpuRoom,
    weights: Weights | None,
    calibration: Calibration,
) -> Prediction:
    """Return what a launch with these flags would bring on these GPUs."""
    return _Forecast(shape, flags, room, weights, calibration).prediction()


class _Forecast:
    """One prediction in the making."""

    def __init__(
        self,
        shape: ModelShape,
        flags: ServingFlags,
        room: GpuRoom,
        weights: Weights | None,
        calibration: Calibration,
    ) -> None:
        self.shape, self.flags, self.room = shape, flags, room
        self.weights = weights
        self.cell: KvCell = kv_cell(shape, flags)
        self.cell_bytes = self.cell.cell_bytes(flags.sliding_ratio)
        self.fraction: MemFraction = mem_fraction(shape, flags, room.total_bytes / MIB)
        self.anchor: Anchor | None = calibration.nearest(flags, self.fraction.expected)
        assumed = assumed_before(room, flags)
        # A host's free memory moves with its other processes: only now counts.
        self.before = assumed if flags.is_cpu else calibration.before(flags, assumed)

    def prediction(self) -> Prediction:
        rest = None if self._is_no_share() else self._rest()
        if rest is None or self.cell_bytes <= 0:
            return self._unknown()
        pool = self._pool(rest)
        limited = self._limited_by(pool, rest)
        tokens = int(pool.expected)
        slots = state_slots(rest.expected_bytes, self.shape, self.flags)
        context = self.flags.context_tokens or self.shape.context_tokens
        running = max_running(tokens, context, self.flags, slots)
        return Prediction(
            pool=pool,
            sliding=self._sliding(pool),
            pools=self.flags.layout.pools,
            limited_by=limited,
            reason=self._reason(rest, limited),
            cell_bytes=self.cell_bytes,
            max_running=running,
            slots=slots,
            free=self._free(rest, pool, running),
            hicache=hicache_need(tokens, self.cell_bytes, self.flags),
            calibrated_by=None if self.anchor is None else _name(self.anchor),
            notes=self._notes(),
        )

    def _is_no_share(self) -> bool:
        given = self.flags.mem_fraction
        return given is not None and not 0 < given <= 1

    def _unknown(self) -> Prediction:
        reason = "no earlier launch of this model on this host, and its weight files are not here"
        if self._is_no_share():
            reason = f"mem-fraction-static {self.flags.mem_fraction:g} is no share of the memory"
        elif self.cell_bytes <= 0:
            reason = "this model keeps no KV that grows with tokens"
        pools = self.flags.layout.pools
        return Prediction(None, None, pools, LimitedBy.UNKNOWN, reason, self.cell_bytes)

    def _rest(self) -> Budget | None:
        rest = self._from_weights() if self.anchor is None else self._from_launch(self.anchor)
        if rest is None:
            return None
        spread = (self.fraction.high - self.fraction.low) / 2 * self.before.expected_bytes
        lost = self.fraction.expected * self.room.foreign_bytes
        return Budget(rest.expected_bytes - lost, rest.error_bytes + spread)

    def _from_launch(self, anchor: Anchor) -> Budget:
        step = self.fraction.expected - anchor.fraction
        rest = anchor.rest.expected_bytes + step * self.before.expected_bytes
        error = anchor.rest.error_bytes + other_launch_error(anchor, self.shape, self.flags)
        if self.flags.is_cpu and anchor.before is not None:
            moved = self.before.expected_bytes - anchor.before.expected_bytes
            rest += anchor.fraction * moved
            return Budget(rest, error + self.fraction.expected * self.before.error_bytes)
        return Budget(rest, error + abs(step) * self.before.error_bytes)

    def _from_weights(self) -> Budget | None:
        if self.weights is None:
            return None
        is_drafted = self.flags.speculative is not None
        held = rank_weights(self.weights, self.flags.layout, with_draft=is_drafted)
        extra = _MULTIMODAL if self.shape.is_multimodal else Budget(0.0, 0.0)
        loading = _HOST_LOADING if self.flags.is_cpu else _LOADING
        is_wide = self.flags.dtype in ("float32", "float") and not self.weights.is_quantized
        width = 2 if is_wide else 1
        used = held.expected_bytes * width + loading.expected_bytes + extra.expected_bytes
        error = held.error_bytes * width + loading.error_bytes + extra.error_bytes
        budget = self.before.expected_bytes * self.fraction.expected - used
        return Budget(budget, error + self.before.error_bytes * self.fraction.expected)

    def _pool(self, rest: Budget) -> Interval:
        budgets = (rest.expected_bytes + sign * rest.error_bytes for sign in (-1, 0, 1))
        low, expected, high = (self._tokens(budget) for budget in budgets)
        return Interval(low, expected, high)

    def _tokens(self, rest: float) -> int:
        tokens = int(max(0.0, kv_part(rest, self.shape, self.flags)) // self.cell_bytes)
        if self.flags.max_total_tokens is not None:
            tokens = min(tokens, self.flags.max_total_tokens)
        return tokens // self.flags.page_tokens * self.flags.page_tokens

    def _sliding(self, pool: Interval) -> Interval | None:
        if not self.cell.sliding_bytes or not self.cell.full_bytes:
            return None
        return pool.times(self.flags.sliding_ratio)

    def _limited_by(self, pool: Interval, rest: Budget) -> LimitedBy:
        if rest.expected_bytes <= 0 or pool.expected <= 0:
            return LimitedBy.WEIGHTS
        sliding = self._sliding(pool)
        window = (self.shape.window_tokens or 0) + self.flags.page_tokens
        if sliding is not None and sliding.expected <= window:
            return LimitedBy.WINDOW
        cap = self.flags.max_total_tokens
        is_cut = cap is not None and pool.expected > cap - self.flags.page_tokens
        return LimitedBy.CAP if is_cut else LimitedBy.MEMORY

    def _reason(self, rest: Budget, limited: LimitedBy) -> str:
        before, fraction = gib(self.before.expected_bytes), self.fraction.expected
        chosen = " (chosen by SGLang)" if self.fraction.is_chosen else ""
        head = f"mem-fraction-static {fraction:g}{chosen} of {before}"
        if limited is LimitedBy.WEIGHTS:
            short = gib(-rest.expected_bytes)
            return f"{head}: weights exceed the budget by {short}; raise it or use more GPUs"
        left = f"leaves {gib(rest.expected_bytes)} for KV at {self.cell_bytes:,.0f} bytes a token"
        if limited is LimitedBy.CAP:
            return f"{head} {left}, but max-total-tokens caps it"
        if limited is LimitedBy.WINDOW:
            window = f"{self.shape.window_tokens:,}-token window"
            return f"{head} {left}: its share does not hold one {window}"
        return f"{head} {left}"

    def _free(self, rest: Budget, pool: Interval, running: int) -> Interval | None:
        """Return what is left when ready: the slack less what graphs took at the anchor."""
        anchor, before = self.anchor, self.before.expected_bytes
        taken = None if anchor is None else _runtime_bytes(anchor, self.shape, before)
        if anchor is None or taken is None:
            return None
        context = self.flags.context_tokens or self.shape.context_tokens
        if anchor.launch.max_running is not None:
            taken += (running - anchor.launch.max_running) * context * _TABLE_BYTES
        after = rest.expected_bytes + before * (1 - self.fraction.expected)
        free = after - whole_budget(pool.expected * self.cell_bytes, self.shape, self.flags) - taken
        return Interval(free - rest.error_bytes, free, free + rest.error_bytes)

    def _notes(self) -> tuple[str, ...]:
        notes = list(self.cell.notes)
        if self.anchor is None:
            source = self.weights.source.value if self.weights else ""
            notes.append(f"not launched here yet: weights from {source}, driver share assumed")
        elif has_other_kv_dtype(self.anchor, self.shape, self.flags):
            notes.append("calibrated by a launch with another KV dtype")
        if self.flags.version is None:
            notes.append("SGLang's version is not known: rules of 0.5.23")
        return tuple(notes)


def _runtime_bytes(anchor: Anchor, shape: ModelShape, before: float) -> float | None:
    """Return what a launch took out of the slack until it was ready; None where not shown."""
    launch = anchor.launch
    after = launch.after_bytes
    if after is None and not is_capped(launch):
        after = anchor.rest.expected_bytes + before * (1 - anchor.fraction)
    if after is None or launch.free_bytes is None:
        return None
    cell = kv_cell(shape, launch.flags).cell_bytes(launch.flags.sliding_ratio)
    return after - launch.free_bytes - whole_budget(launch.pool_tokens * cell, shape, launch.flags)


def _name(anchor: Anchor) -> str:
    tokens = f"{anchor.launch.pool_tokens:,} tokens at mem-fraction-static {anchor.fraction:g}"
    return f"{anchor.launch.label}: {tokens}" if anchor.launch.label else tokens
