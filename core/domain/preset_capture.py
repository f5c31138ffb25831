"""A running launch to the document of a preset that would start it again.

Pure. Secrets are never taken over: they become references to be filled in.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvctl.core.domain.preset_diff import flags_of_argv
from kvctl.core.domain.preset_text import is_secret_flag, is_secret_variable
from kvctl.core.domain.presets import Value, canonical

_MODULE = "sglang.launch_server"
_LAUNCH = ("model-path", "host", "port")
_OF_A_LAUNCH = re.compile(r"(SGLANG|SGL|NCCL|CUDA|HF|TORCH|PYTORCH|OMP|MKL|TRITON)_|PYTHONPATH$")


def document_of(
    argv: Sequence[str], environment: Mapping[str, str], description: str
) -> dict[str, Any]:
    """Return the TOML document of a preset for this command line and environment.

    Of the environment only what belongs to a launch is kept (SGLANG_*, NCCL_*, CUDA_* …).
    """
    flags = [(canonical(name), value) for name, value in flags_of_argv(argv)]
    launch = _program(argv) | {n: _plain(v) for n, v in flags if n in _LAUNCH}
    kept = {n: v for n, v in sorted(environment.items()) if _OF_A_LAUNCH.match(n)}
    document: dict[str, Any] = {
        "description": description,
        "launch": launch,
        "flags": {n: _plain(v) for n, v in flags if n not in _LAUNCH and not is_secret_flag(n)},
    }
    if plain := {n: v for n, v in kept.items() if not is_secret_variable(n)}:
        document["env"] = plain
    hidden = [n for n, _ in flags if is_secret_flag(n)] + [n for n in kept if is_secret_variable(n)]
    if hidden:
        document["secrets"] = {n: {"env": _variable(n)} for n in hidden}
    return document


def _program(argv: Sequence[str]) -> dict[str, Any]:
    """The interpreter, or the command up to its first flag that is SGLang's."""
    words = list(argv)
    if _MODULE in words and words.index(_MODULE) >= 2:
        return {"python": words[0]}
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return {"command": [*words[:first], "{sglang_args}"]}


def _variable(name: str) -> str:
    return name if name.isupper() else f"SGLANG_{name.upper().replace('-', '_')}"


def _plain(value: Value) -> Any:  # noqa: ANN401 - a TOML value
    """Return a word of a command line as the number it is, where it reads back the same."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value:
            return number
    return value
