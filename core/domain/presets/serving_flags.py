"""The flags of one launch that decide its KV pool, read from a preset or from /server_info.

Pure. Flags arrive by name (any of SGLang's spellings) with text, number or switch values; what is
absent is None, meaning that SGLang chooses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvctl.core.domain.presets.preset import Setting, canonical

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_RENAMED = {
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "disable-piecewise-cuda-graph": "disable-prefill-cuda-graph",
}
"""One name for what was called differently in other versions."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is spread over GPUs."""

    tp: int = 1
    pp: int = 1
    attn_dp: int = 1
    """Data-parallel attention inside the TP group; each rank has a pool of its own."""
    replicas: int = 1
    """Whole copies of the model (dp-size without DP attention)."""
    nodes: int = 1

    @property
    def attn_tp(self) -> int:
        """Ranks over which attention heads are split."""
        return max(1, self.tp // self.attn_dp)

    @property
    def pools(self) -> int:
        """KV pools of `max_total_num_tokens` each."""
        return self.attn_dp * self.replicas

    @property
    def gpus(self) -> int:
        """GPUs on all nodes."""
        return self.tp * self.pp * self.replicas

    @property
    def ranks_on_host(self) -> int:
        """Ranks on this host; a whole number, at least 1."""
        return max(1, self.gpus // self.nodes)


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """What a launch asks for; None where SGLang chooses."""

    version: str | None = None
    """SGLang's, None where it is not known: the newest rules are taken."""
    layout: Layout = Layout()
    mem_fraction: float | None = None
    kv_dtype: str = "auto"
    dtype: str = "auto"
    max_total_tokens: int | None = None
    max_running: int | None = None
    """max-running-requests of the whole server."""
    page_tokens: int = 1
    context_tokens: int | None = None
    chunked_prefill: int | None = None
    graph_max_batch: int | None = None
    has_decode_graphs: bool = True
    has_prefill_graphs: bool = True
    has_radix_cache: bool = True
    sliding_ratio: float = 0.8
    """swa-full-tokens-ratio."""
    mamba_ratio: float = 0.9
    """mamba-full-memory-ratio."""
    mamba_slots: int | None = None
    """max-mamba-cache-size."""
    speculative: str | None = None
    """speculative-algorithm in capitals."""
    draft_path: str | None = None
    has_hicache: bool = False
    hicache_gb: float = 0.0
    """hicache-size: decimal GB a rank; 0: by the ratio."""
    hicache_ratio: float | None = None
    is_cpu: bool = False
    weight_flags: tuple[tuple[str, str], ...] = ()
    """Flags that change what the weights take, for comparing launches."""


_WEIGHT_FLAGS = (
    "dtype",
    "quantization",
    "ep-size",
    "moe-a2a-backend",
    "enable-dp-lm-head",
    "moe-dense-tp-size",
    "speculative-algorithm",
    "cpu-offload-gb",
    "enable-lora",
    "lora-paths",
)
_READ = (
    "model-path",
    "device",
    "tp-size",
    "pp-size",
    "dp-size",
    "attn-dp-size",
    "enable-dp-attention",
    "nnodes",
    "mem-fraction-static",
    "kv-cache-dtype",
    "max-total-tokens",
    "max-running-requests",
    "page-size",
    "context-length",
    "chunked-prefill-size",
    "cuda-graph-max-bs-decode",
    "disable-cuda-graph",
    "disable-decode-cuda-graph",
    "disable-prefill-cuda-graph",
    "disable-radix-cache",
    "swa-full-tokens-ratio",
    "mamba-full-memory-ratio",
    "max-mamba-cache-size",
    "speculative-draft-model-path",
    "enable-hierarchical-cache",
    "hicache-size",
    "hicache-ratio",
    *_WEIGHT_FLAGS,
)
"""Every flag that is read here."""
_NOTHING = (None, "", False, "auto", "none", "None", 0, 1, "bfloat16", "float16", "half")
"""Values that mean "as without the flag" for those above; 1 is ep-size without expert parallelism,
and 16-bit weights are what "auto" loads."""


class _Flags:
    """Looks flags up by one spelling."""

    def __init__(self, flags: Mapping[str, object]) -> None:
        named = {canonical(name): value for name, value in flags.items()}
        self._flags = {_RENAMED.get(name, name): value for name, value in named.items()}

    def raw(self, name: str) -> object:
        return self._flags.get(name)

    def switch(self, name: str) -> bool:
        return self._flags.get(name) in (True, "true", "True")

    def words(self, name: str) -> str | None:
        value = self._flags.get(name)
        return None if value in (None, "", False, True) else str(value)

    def number(self, name: str) -> float | None:
        value = self._flags.get(name)
        return None if value is None or isinstance(value, bool) else _quantity(str(value))

    def at_least_one(self, name: str) -> int:
        return max(1, self.whole(name) or 1)

    def draft_path(self) -> str | None:
        # For a built-in draft SGLang resolves the model's own path here.
        path = self.words("speculative-draft-model-path")
        return None if path == self.words("model-path") else path

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)


def _quantity(text: str) -> float | None:
    """Return a number, or one with a suffix that SGLang accepts (400k, 1Mi).

    >>> _quantity("400k"), _quantity("0.88"), _quantity("none")
    (400000.0, 0.88, None)
    """
    plain = text.strip().lower()
    suffix = next((s for s in sorted(_UNITS, key=len, reverse=True) if plain.endswith(s)), "")
    try:
        value = float(plain.removesuffix(suffix)) * _UNITS.get(suffix, 1)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def flags_of_settings(settings: Sequence[Setting], version: str | None = None) -> ServingFlags:
    """Return what a preset's flags (`LaunchPlan.settings`) ask for."""
    return serving_flags({s.name: s.value for s in settings if s.value is not False}, version)


def serving_flags(flags: Mapping[str, object], version: str | None = None) -> ServingFlags:
    """Return what flags ask for; `ServerInfo.flags` and a preset's names are both understood."""
    found = _Flags(flags)
    return ServingFlags(
        version=version,
        layout=_layout(found),
        mem_fraction=found.number("mem-fraction-static"),
        kv_dtype=(found.words("kv-cache-dtype") or "auto").lower(),
        dtype=(found.words("dtype") or "auto").lower(),
        max_total_tokens=found.whole("max-total-tokens"),
        max_running=found.whole("max-running-requests"),
        page_tokens=found.at_least_one("page-size"),
        context_tokens=found.whole("context-length"),
        chunked_prefill=found.whole("chunked-prefill-size"),
        graph_max_batch=found.whole("cuda-graph-max-bs-decode"),
        has_decode_graphs=not _is_off(found, "decode"),
        has_prefill_graphs=not _is_off(found, "prefill"),
        has_radix_cache=not found.switch("disable-radix-cache"),
        sliding_ratio=_or_default(found.number("swa-full-tokens-ratio"), 0.8),
        mamba_ratio=_or_default(found.number("mamba-full-memory-ratio"), 0.9),
        mamba_slots=found.whole("max-mamba-cache-size"),
        speculative=_upper(found.words("speculative-algorithm")),
        draft_path=found.draft_path(),
        has_hicache=found.switch("enable-hierarchical-cache"),
        hicache_gb=found.number("hicache-size") or 0.0,
        hicache_ratio=found.number("hicache-ratio"),
        is_cpu=found.words("device") == "cpu",
        weight_flags=_weight_flags(found),
    )


def pool_flags(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the flags that `serving_flags` reads, by their own names; the rest is left out."""
    named = ((canonical(name), value) for name, value in flags.items())
    kept = {_RENAMED.get(name, name): value for name, value in named}
    return {name: kept[name] for name in _READ if kept.get(name) is not None}


def _layout(found: _Flags) -> Layout:
    dp = found.at_least_one("dp-size")
    attn_dp = found.at_least_one("attn-dp-size")
    if attn_dp == 1 and found.switch("enable-dp-attention"):
        attn_dp = dp
    return Layout(
        tp=found.at_least_one("tp-size"),
        pp=found.at_least_one("pp-size"),
        attn_dp=attn_dp,
        replicas=1 if attn_dp > 1 else dp,
        nodes=found.at_least_one("nnodes"),
    )


def _is_off(found: _Flags, phase: str) -> bool:
    return found.switch("disable-cuda-graph") or found.switch(f"disable-{phase}-cuda-graph")


def _weight_flags(found: _Flags) -> tuple[tuple[str, str], ...]:
    used = [(name, found.raw(name)) for name in _WEIGHT_FLAGS]
    used.append(("speculative-draft-model-path", found.draft_path()))
    return tuple((name, str(value)) for name, value in used if value not in _NOTHING)


def _upper(text: str | None) -> str | None:
    return None if text is None or text.lower() == "none" else text.upper()


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value
