"""What flags of one launch mean for each other: what SGLang refuses together, what needs what.

Source: `ServerArgs` checks of 0.4.6.post5, 0.5.2, 0.5.6, 0.5.10, 0.5.15 and of
`arg_groups/validation_hook.py`, `hicache_hook.py` in 0.5.23; only what holds in all of them.
"""

from collections.abc import Iterator, Mapping, Sequence

from kvctl.core.domain.presets.preset import Setting, canonical

_CONFLICTS = (("enable-hierarchical-cache", "disable-radix-cache"),)
"""HiCache keeps evicted prefixes, and without the radix cache there are none."""

_NEEDS = (
    ("hicache-", "enable-hierarchical-cache"),
    ("speculative-num-", "speculative-algorithm"),
    ("speculative-eagle-topk", "speculative-algorithm"),
    ("speculative-draft-model-path", "speculative-algorithm"),
    ("node-rank", "nnodes"),
    ("dist-init-addr", "nnodes"),
    ("enable-metrics-for-all-schedulers", "enable-metrics"),
)
"""Flags (by the beginning of their name) that do nothing without another one."""

_AT_LEAST = {
    **dict.fromkeys(("tp-size", "dp-size", "pp-size", "ep-size", "nnodes", "page-size"), 1),
    **dict.fromkeys(("max-running-requests", "max-total-tokens", "gpu-id-step"), 1),
    **dict.fromkeys(("context-length", "stream-interval", "decode-log-interval"), 1),
    **dict.fromkeys(("base-gpu-id", "node-rank", "hicache-size"), 0),
}

_SHARES = ("mem-fraction-static",)
"""Flags that are a share of something."""

Told = tuple[Setting, str]
"""The setting and what is wrong with it."""


def refused_together(given: Sequence[Setting]) -> Iterator[Told]:
    """Yield what SGLang refuses although each flag alone is right."""
    by_name = {canonical(s.name): s for s in given}
    for one, other in _CONFLICTS:
        if one in by_name and other in by_name:
            yield by_name[one], f"cannot work with '{other}': SGLang refuses the two"
    for name, setting in by_name.items():
        number = _number(setting)
        least = _AT_LEAST.get(name)
        if number is not None and least is not None and number < least:
            yield setting, f"must be at least {least}, not {setting.value}"
        if number is not None and name in _SHARES and not 0 < number < 1:
            yield setting, f"must lie between 0 and 1, not {_quoted(setting)}"
    yield from _layout(by_name)


def without_effect(given: Sequence[Setting]) -> Iterator[Told]:
    """Yield flags that do nothing because another one is missing."""
    by_name = {canonical(s.name): s for s in given}
    for prefix, needed in _NEEDS:
        for name, setting in by_name.items():
            is_meant = name.startswith(prefix) if prefix.endswith("-") else name == prefix
            if is_meant and needed not in by_name:
                yield setting, f"has no effect without '{needed}'"


def _layout(given: Mapping[str, Setting]) -> Iterator[Told]:
    """Yield sizes that do not divide as the ranks must."""
    tp, pp, dp = (_size(given, name) for name in ("tp-size", "pp-size", "dp-size"))
    nodes, rank = _size(given, "nnodes"), _number(given.get("node-rank"))
    has_attention_dp = "enable-dp-attention" in given or "attn-dp-size" in given
    if "nnodes" in given and nodes > 0 and tp * pp % nodes:
        yield given["nnodes"], f"does not divide tp-size times pp-size, {tp * pp}"
    if rank is not None and "nnodes" in given and rank >= nodes:
        yield given["node-rank"], f"must be below nnodes, {nodes}"
    if dp > 1 and nodes > 1 and not has_attention_dp:
        yield given["dp-size"], "cannot span nodes without data-parallel attention"
    if "enable-dp-attention" in given and dp > 0 and tp % dp:
        yield given["dp-size"], f"must divide tp-size, {tp}, with enable-dp-attention"
    chunk, page = _number(given.get("chunked-prefill-size")), _number(given.get("page-size"))
    if chunk is not None and page is not None and chunk > 0 and page > 0 and chunk % page:
        yield given["chunked-prefill-size"], f"must be a multiple of page-size, {page:g}"


def _size(given: Mapping[str, Setting], name: str) -> int:
    number = _number(given.get(name))
    return 1 if number is None else int(number)


def _number(setting: Setting | None) -> float | None:
    """Return a value as a number; None where it is none (told elsewhere) or a plain switch."""
    if setting is None or isinstance(setting.value, bool | tuple):
        return None
    try:
        return float(str(setting.value))
    except ValueError:
        return None


def _quoted(setting: Setting) -> str:
    return f'"{setting.value}"' if isinstance(setting.value, str) else str(setting.value)
