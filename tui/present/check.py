"""What a preset's preflight found, read from the outcome of CheckPreset.

A key that is missing is a line that is not shown. Keys of its data: `lines` [{ok, name, text}],
`diff` [{flag, now, after, kind}], `same` (number of unchanged flags), `brings` [str], `time`
(str), `how` {way: {text, cost}}, `predicted_tokens` (int), `predicted_ratio` (float,
half the interval, None where unknown), `calibrated_by` (str).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvctl.core.controller.commands import Outcome
from kvctl.core.domain.capacity.prediction import EXACT_RATIO
from kvctl.core.domain.units import kilo_tokens


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One preflight check: how it ended, its name, what was seen."""

    ok: str
    name: str
    text: str

    @property
    def words(self) -> str:
        """Name and finding as one text."""
        return f"{self.name}: {self.text}" if self.name and self.text else self.name or self.text


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that would differ."""

    flag: str
    now: str
    after: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What CheckPreset found for one preset."""

    preset: str
    exit_status: int
    message: str
    lines: tuple[CheckLine, ...] = ()
    changes: tuple[Change, ...] = ()
    same: int | None = None
    brings: tuple[str, ...] = ()
    time: str = ""
    how: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    calibrated: str = ""
    """What the expected pool rests on."""

    @property
    def is_passed(self) -> bool:
        """Whether the preset may be started."""
        return self.exit_status == 0 and all(line.ok != "fail" for line in self.lines)


def read_check(preset: str, outcome: Outcome) -> Check:
    """Return the outcome of CheckPreset as a typed value."""
    data = outcome.data
    same = data.get("same")
    return Check(
        preset,
        outcome.exit_status,
        outcome.message,
        tuple(
            CheckLine(str(d.get("ok", "warn")), str(d.get("name", "")), str(d.get("text", "")))
            for d in _rows(data.get("lines"))
        ),
        tuple(
            Change(_word(d.get("flag")), _word(d.get("now")), _word(d.get("after")), _kind(d))
            for d in _rows(data.get("diff"))
        ),
        same if isinstance(same, int) else None,
        tuple(str(text) for text in _sequence(data.get("brings"))),
        str(data.get("time") or ""),
        _ways(data.get("how")),
        _calibrated(data),
    )


def _calibrated(data: Mapping[str, Any]) -> str:
    """Return what the pool is expected to be, how sure that is and what it rests on."""
    pool, by, ratio = (
        data.get(name) for name in ("predicted_tokens", "calibrated_by", "predicted_ratio")
    )
    if not isinstance(pool, int):
        return ""
    if not by and isinstance(ratio, float) and ratio < EXACT_RATIO:
        return f"KV pool {pool:,}: max-total-tokens says so, and memory is expected to hold it"
    within = f" ±{ratio:.0%}" if isinstance(ratio, float) and ratio >= EXACT_RATIO else ""
    source = f"calibrated by {by}" if by else "not calibrated yet: assumptions alone"
    return f"KV pool ~{kilo_tokens(pool)}{within}, {source}"


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [item for item in _sequence(value) if isinstance(item, Mapping)]


def _word(value: object) -> str:
    if value is None or value is False:
        return "–"
    return "on" if value is True else str(value)


def _kind(row: Mapping[str, Any]) -> str:
    return str(row.get("kind") or "")


def _ways(value: object) -> dict[str, tuple[str, str]]:
    if not isinstance(value, Mapping):
        return {}
    rows = {str(k): v for k, v in value.items() if isinstance(v, Mapping)}
    return {k: (str(v.get("text", "")), str(v.get("cost", ""))) for k, v in rows.items()}
