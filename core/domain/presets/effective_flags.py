"""The flags a server runs with: as given, as resolved at its start, as they are now.

Source: /server_info; top-level values are those of the start, `internal_states` holds live ones
(0.5.20 and later resolve lazily). What differs from the preset, from SGLang's default, or between
start and now is told; the flags that move the KV ceiling come first.
"""

from collections.abc import Mapping, Sequence

from kvctl.core.domain.presets.diff import flags_of_argv, text_of
from kvctl.core.domain.presets.flags import FlagCatalogue
from kvctl.core.domain.presets.preset import canonical, dashed
from kvctl.core.domain.servers.server import EffectiveFlag, LaunchFlag
from kvctl.core.domain.telemetry.readings import ServerInfo
from kvctl.core.domain.telemetry.server_info import masked

CEILING = (
    *("mem-fraction-static", "max-total-tokens", "kv-cache-dtype", "max-running-requests"),
    *("pp-max-micro-batch-size", "page-size", "chunked-prefill-size", "max-prefill-tokens"),
    *("schedule-conservativeness", "tp-size", "dp-size", "pp-size", "ep-size"),
    *("enable-dp-attention", "quantization", "dtype", "context-length", "disable-cuda-graph"),
    *("cuda-graph-max-bs", "cuda-graph-max-bs-decode", "swa-full-tokens-ratio"),
    *("mamba-full-memory-ratio", "disable-radix-cache", "enable-hierarchical-cache"),
    *("hicache-ratio", "hicache-size", "speculative-algorithm", "speculative-num-draft-tokens"),
    "max-queued-requests",
)
"""Flags that move the KV ceiling or how far it can be used, strongest first."""
_ALWAYS = CEILING[:4]
_UNSET = ("None", "", "[]", "{}")


def effective_flags(
    info: ServerInfo, launched: Sequence[LaunchFlag], catalogue: FlagCatalogue | None
) -> tuple[EffectiveFlag, ...]:
    """Return every flag that was given or differs from its default, and the strongest levers.

    Without a catalogue of this version defaults are not known: then only what was given, what
    changed at run time and the flags that move the ceiling are told.
    """
    given = _given(info, launched)
    flags = [_flag(name, value, info, given, catalogue) for name, value in info.flags.items()]
    ranks = {name: number for number, name in enumerate(CEILING)}
    kept = [f for f in flags if f.differs or f.given is not None or f.name in _ALWAYS]
    return tuple(sorted(kept, key=lambda f: (ranks.get(f.name, len(ranks)), not f.differs, f.name)))


def _flag(
    name: str,
    value: object,
    info: ServerInfo,
    given: Mapping[str, tuple[str, str]],
    catalogue: FlagCatalogue | None,
) -> EffectiveFlag:
    shown = dashed(name)
    start, live = shown_value(value), info.live_flags.get(name, _resolved(name, value, info))
    now = start if live is None else shown_value(live)
    wanted, by = given.get(canonical(shown), (None, None))
    if wanted is not None:
        wanted = str(masked(name, wanted))
    default = _default(catalogue, shown)
    facts = (
        ("given", wanted is not None and not is_same(wanted, now)),
        ("default", default is not None and not _is_default(default, now)),
        ("run time", not is_same(start, now)),
    )
    return EffectiveFlag(
        name=shown,
        value=now,
        given=wanted,
        given_by=by,
        default=default,
        at_start=start if not is_same(start, now) else None,
        differs=tuple(word for word, is_so in facts if is_so),
        moves_ceiling=shown in CEILING,
    )


def _resolved(name: str, value: object, info: ServerInfo) -> object:
    """Return what the server made of a size that nobody gave, None where it does not tell."""
    if value is not None:
        return None
    return {"max_running_requests": info.max_running, "max_total_tokens": info.pool_tokens}.get(
        name
    )


def _is_default(default: str, now: str) -> bool:
    """Return whether a value is the default; a switch without one is off."""
    return is_same(default, now) or (default == "unset" and now == "off")


def _given(info: ServerInfo, launched: Sequence[LaunchFlag]) -> dict[str, tuple[str, str]]:
    """Return value and origin of the flags that the launch named, by canonical name."""
    of_preset = {
        canonical(flag.name): (flag.value, flag.origin)
        for flag in launched
        if flag.origin.startswith("preset")
    }
    if of_preset or info.launch_command is None:
        return of_preset
    words = info.launch_command.split()
    return {canonical(n): (text_of(v), "command line") for n, v in flags_of_argv(words)}


def _default(catalogue: FlagCatalogue | None, name: str) -> str | None:
    """Return a flag's default, "unset" where it has none; None: not known."""
    spec = None if catalogue is None else catalogue.find(name)
    if spec is None:
        return None
    return "unset" if spec.default is None else spec.default


def shown_value(value: object) -> str:
    """Return a resolved value as a person reads it: on, off, unset, lists separated by spaces."""
    if value is True:
        return "on"
    if value is False:
        return "off"
    if isinstance(value, list | tuple):
        return " ".join(shown_value(item) for item in value) or "unset"
    text = str(value)
    return "unset" if text in _UNSET else text


def is_same(one: str, other: str) -> bool:
    """Return whether two values mean the same: 0.9 and "0.90", on and True, unset and None."""
    first, second = _normal(one), _normal(other)
    if first == second:
        return True
    try:
        return float(first) == float(second)
    except ValueError:
        return False


def _normal(text: str) -> str:
    bare = text.strip().strip("'\"")
    if bare in _UNSET:
        return "unset"
    return {"true": "on", "false": "off"}.get(bare.lower(), bare)
