"""Presets side by side before a restart: pool, ceiling, fit, rate and the time the run would take.

Pure: presets, the host's memory, its ledger and the run's lengths go in. Every figure says what it
rests on; what is not known is None with a reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvctl.core.domain.capacity.calibration import Calibration, calibrate
from kvctl.core.domain.capacity.ceiling import BoundBy, Ceiling, Lengths, ceiling, observed_ceiling
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.capacity.model_shape import ModelShape
from kvctl.core.domain.capacity.model_weights import Weights
from kvctl.core.domain.capacity.prediction import Interval, Prediction, predict_pool
from kvctl.core.domain.launches.launch import LaunchRecord, observed_of
from kvctl.core.domain.launches.measured_speed import MeasuredSpeed, SpeedKey, measured_speed
from kvctl.core.domain.launches.step_law import expected_rate
from kvctl.core.domain.presets.serving_flags import ServingFlags
from kvctl.core.domain.runs.run import Run

_EXACT = 0.0005
"""Two starts of one launch agree to about this share of their pool."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One preset as a plan needs it."""

    name: str
    description: str = ""
    refused: str | None = None
    """The rule that refuses it."""
    problem: str | None = None
    """Why it cannot be read or rendered here."""
    model: str = ""
    """Path of the model folder, or what the preset names."""
    flags: ServingFlags = field(default_factory=ServingFlags)
    argv: tuple[str, ...] = ()
    """Secrets hidden, as the ledger keeps it."""
    shape: ModelShape | None = None
    weights: Weights | None = None
    shape_problem: str = ""
    """Why the model's shape is not known."""
    room: GpuRoom | None = None
    """Of the fullest GPU it would take (the host, on the CPU); None where that is not known."""


@dataclass(frozen=True, slots=True)
class Work:
    """One partition: the lengths of its answers, and what is left of it."""

    name: str
    lengths: Lengths
    left_tokens: float | None
    """Output tokens still to be made; None while not known."""
    rows_left: int | None
    """None: not known, or more than ever decode at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """One partition under one preset."""

    name: str
    mean_tokens: float | None
    plain: int | None
    """Pool over length, prompt included."""
    steady: Interval | None
    """N = C u / k: requests that decode at once."""
    bound_by: BoundBy
    rate: Interval | None
    """Generated tok/s at the smaller of N and the slots."""
    left_s: float | None
    """Seconds that what is left of the partition takes."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What one preset would bring."""

    name: str
    description: str
    refused: str | None
    problem: str | None
    pool: Interval | None
    """Tokens of all pools together."""
    pools: int
    """How many pools that are (DP ranks)."""
    reason: str
    """The arithmetic of the pool, or why it is not known."""
    calibrated_by: str | None
    """The launch that the pool rests on; None: assumptions alone."""
    measured_tokens: int | None
    """All pools of the last launch of exactly this command line; None if there was none."""
    fits: bool | None
    """In GPU memory; None: it may or may not."""
    max_running: int | None
    free: Interval | None
    """Bytes free per GPU when ready."""
    host_bytes: float | None
    """What HiCache takes of the host's memory, all ranks; None without HiCache."""
    host_available_bytes: float | None
    host_fits: bool | None
    parts: tuple[Part, ...]
    rate_from: str
    """Which launches the rates rest on, or why there are none."""
    left_s: float | None
    """Seconds that the whole run takes; None while a part of it is not known."""
    notes: tuple[str, ...] = ()

    @property
    def may_start(self) -> bool:
        """Whether nothing speaks against it."""
        bad = self.fits is False or self.host_fits is False
        return not (self.refused or self.problem or bad)


@dataclass(frozen=True, slots=True)
class PlanScene:
    """What is the same for every preset."""

    launches: tuple[LaunchRecord, ...]
    works: tuple[Work, ...] = ()
    slots: int | None = None
    """A fixed number of requests in flight; None: AUTO, as many as decode."""
    host_available_bytes: float | None = None
    """Free host memory with our own server gone."""


def works_of(run: Run | None) -> tuple[Work, ...]:
    """Return a run's partitions that are not done."""
    if run is None:
        return ()
    return tuple(
        Work(
            part.name,
            lengths_that_hold(part.mean_tokens, part.held_tokens, part.prompt_tokens or 0.0),
            part.left_tokens,
            part.total - part.done - part.failed,
        )
        for part in run.partitions
        if part.done + part.failed < part.total
    )


def lengths_that_hold(mean: float | None, held: float | None, prompt_mean: float) -> Lengths:
    """Return the lengths of which the mean and k are known (E[L^2] = 2 E[L] (k - P))."""
    if mean is None or held is None:
        return Lengths(prompt_mean, 0, 0.0, 0.0)
    return Lengths(prompt_mean, 1, mean, max(mean, 2 * (held - prompt_mean)) * mean)


def plan(candidates: Sequence[Candidate], scene: PlanScene) -> tuple[Planned, ...]:
    """Return every candidate with what it would bring, in their order."""
    return tuple(_planned(candidate, scene) for candidate in candidates)


def predict(candidate: Candidate, launches: Sequence[LaunchRecord]) -> Prediction | None:
    """Return the pool of a launch, calibrated by those of the same model; None without a shape."""
    if candidate.shape is None or candidate.room is None:
        return None
    known = calibration_of(candidate, launches)
    return predict_pool(candidate.shape, candidate.flags, candidate.room, candidate.weights, known)


def calibration_of(candidate: Candidate, launches: Sequence[LaunchRecord]) -> Calibration:
    """Return what the host's ledger teaches about a candidate's model."""
    if candidate.shape is None:
        return Calibration()
    own = (launch for launch in launches if launch.model == candidate.model)
    # Newest first: of two launches that are as near, the later one tells of the host as it is.
    observed = [seen for launch in reversed([*own]) if (seen := observed_of(launch)) is not None]
    return calibrate(candidate.shape, observed)


def _planned(candidate: Candidate, scene: PlanScene) -> Planned:
    prediction = predict(candidate, scene.launches)
    last = _last_same(candidate, scene.launches)
    pool, reason, source = _pool(candidate, prediction, last)
    measured = measured_speed(_key(candidate), scene.launches)
    parts = tuple(
        _part(
            work,
            _ceiling(candidate, prediction, pool, work.lengths),
            measured,
            scene.slots,
        )
        for work in scene.works
    )
    need = None if prediction is None else prediction.hicache
    return Planned(
        name=candidate.name,
        description=candidate.description,
        refused=candidate.refused,
        problem=candidate.problem,
        pool=pool,
        pools=candidate.flags.layout.pools,
        reason=reason,
        calibrated_by=source,
        measured_tokens=None if last is None else _all_pools(last),
        fits=None if prediction is None else prediction.fits,
        max_running=None if prediction is None else prediction.max_running,
        free=None if prediction is None else prediction.free,
        host_bytes=None if need is None else need.total_bytes,
        host_available_bytes=scene.host_available_bytes,
        host_fits=None if need is None else need.fits(scene.host_available_bytes),
        parts=parts,
        rate_from=measured.told,
        left_s=_sum([part.left_s for part in parts]),
        notes=() if prediction is None else prediction.notes,
    )


def _pool(
    candidate: Candidate, prediction: Prediction | None, last: LaunchRecord | None
) -> tuple[Interval | None, str, str | None]:
    """Return the pool of all ranks, why, and the launch it rests on."""
    if prediction is not None and prediction.pool is not None:
        return prediction.total, prediction.reason, prediction.calibrated_by
    if last is not None and last.pool_tokens:
        tokens = float(_all_pools(last))
        bounds = Interval(tokens * (1 - _EXACT), tokens, tokens * (1 + _EXACT))
        return bounds, "the last launch of this very command line", f"{last.preset} ({last.id})"
    if prediction is not None:
        return None, prediction.reason, None
    why = candidate.problem or candidate.shape_problem or "the GPUs it would take are not known"
    return None, f"{why}, and this command line was never launched here", None


def _last_same(candidate: Candidate, launches: Sequence[LaunchRecord]) -> LaunchRecord | None:
    same = (x for x in reversed(launches) if x.argv == candidate.argv and x.pool_tokens)
    return next(same, None) if candidate.argv else None


def _all_pools(launch: LaunchRecord) -> int:
    return (launch.pool_tokens or 0) * launch.serving.layout.pools


def _ceiling(
    candidate: Candidate, prediction: Prediction | None, pool: Interval | None, lengths: Lengths
) -> Ceiling:
    """Return the ceiling of a predicted pool, or of one that an earlier launch had."""
    if prediction is not None and prediction.pool is not None and candidate.shape is not None:
        return ceiling(prediction, candidate.shape, lengths)
    return observed_ceiling(None if pool is None else int(pool.expected), lengths)


def _part(work: Work, found: Ceiling, measured: MeasuredSpeed, slots: int | None) -> Part:
    steady = found.steady
    at_once = None if steady is None else _at_once(steady.expected, work, slots)
    rate = None if at_once is None else expected_rate(measured.points, at_once)
    effective = measured.effective.get(work.name)
    if effective is None and rate is not None:
        effective = rate.expected * measured.effective_ratio
    left = work.left_tokens
    left_s = 0.0 if left == 0 else None if left is None or not effective else left / effective
    mean = work.lengths.mean
    return Part(work.name, mean, found.plain, steady, found.bound_by, rate, left_s)


def _at_once(steady: float, work: Work, slots: int | None) -> float:
    limits = (steady, work.rows_left, slots)
    return max(1.0, min(float(limit) for limit in limits if limit is not None))


def _key(candidate: Candidate) -> SpeedKey:
    return SpeedKey(candidate.name, candidate.model, candidate.argv, candidate.flags)


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None
