"""The command line of the simulated server: SGLang 0.5.23's flags with their defaults.

`server_args.json` lists every argument and its default as a real server reports them. A flag
that SGLang would refuse is refused here in the same words and with the same exit status.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

SHORT_NAMES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "model": "model_path",
}
CHOICES = {
    "kv_cache_dtype": (
        *("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8"),
        *("bf16", "bfloat16", "nvfp4", "fp4_mx_block16"),
    ),
    "load_format": ("auto", "pt", "safetensors", "npcache", "dummy", "sharded_state", "gguf"),
}
_SUFFIXES = {"k": 1000, "m": 1000**2, "ki": 1024, "mi": 1024**2}


class ArgumentsRefused(Exception):
    """The command line is wrong; the message is the last line that argparse would print."""


@dataclass(frozen=True, slots=True)
class ServerArguments:
    """Every server argument with its resolved value."""

    values: dict[str, Any]
    argv: tuple[str, ...]
    """The arguments as given."""

    def text(self, name: str) -> str:
        """Return an argument as text."""
        return str(self.values[name])

    def number(self, name: str) -> int:
        """Return an argument that is a whole number."""
        return int(self.values[name])

    def maybe_number(self, name: str) -> int | None:
        """Return an argument that is a whole number or unset."""
        value = self.values[name]
        return None if value is None else int(value)


def parse_arguments(argv: Sequence[str]) -> ServerArguments:
    """Return the arguments of a command line over the defaults.

    Raises:
        ArgumentsRefused: A flag is unknown, ambiguous or has a value of the wrong type.
    """
    values: dict[str, Any] = json.loads(
        files("kvctl.core.sim").joinpath("server_args.json").read_text("utf-8")
    )
    strays: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            strays.append(word)
            continue
        flag, has_value, inline = word.partition("=")
        given = [inline] if has_value else _take_values(words)
        name = _resolve(flag, values)
        if name is None:
            strays += [word, *given]
        else:
            values[name] = _typed(name, values[name], given)
    if strays:
        raise ArgumentsRefused(f"unrecognized arguments: {' '.join(strays)}")
    if not values["model_path"]:
        raise ArgumentsRefused("the following arguments are required: --model-path/--model")
    _fill_in(values)
    return ServerArguments(values, tuple(argv))


def _take_values(words: list[str]) -> list[str]:
    taken: list[str] = []
    while words and not words[0].startswith("--"):
        taken.append(words.pop(0))
    return taken


def _resolve(flag: str, values: dict[str, Any]) -> str | None:
    """Return the argument that a flag names, abbreviations as argparse allows them."""
    name = flag[2:].replace("-", "_")
    name = SHORT_NAMES.get(name, name)
    if name in values:
        return name
    near = [known for known in values if known.startswith(name) and not known.startswith("_")]
    if len(near) > 1:
        options = ", ".join(f"--{known.replace('_', '-')}" for known in near)
        raise ArgumentsRefused(f"ambiguous option: {flag} could match {options}")
    return near[0] if near else None


def _typed(name: str, default: object, given: list[str]) -> object:
    if not given:
        return True
    if isinstance(default, list) or len(given) > 1:
        return given
    word = given[0]
    if name in CHOICES and word not in CHOICES[name]:
        listed = ", ".join(f"'{choice}'" for choice in CHOICES[name])
        raise ArgumentsRefused(
            f"argument {_flag(name)}: invalid choice: '{word}' (choose from {listed})"
        )
    if isinstance(default, bool):
        return word.lower() in ("1", "true", "yes")
    if isinstance(default, int) or name.startswith("max_"):
        return _whole(name, word)
    if isinstance(default, float) or default is None:
        return _guessed(word) if default is None else _real(name, word)
    return word


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _whole(name: str, word: str) -> int:
    digits = word.lower().rstrip("kmi")
    factor = _SUFFIXES.get(word.lower()[len(digits) :], 1)
    try:
        return int(digits) * factor
    except ValueError:
        text = f"argument {_flag(name)}: invalid int value: '{word}'"
        raise ArgumentsRefused(text) from None


def _real(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        text = f"argument {_flag(name)}: invalid float value: '{word}'"
        raise ArgumentsRefused(text) from None


def _guessed(word: str) -> object:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _fill_in(values: dict[str, Any]) -> None:
    values["tokenizer_path"] = values["tokenizer_path"] or values["model_path"]
    values["served_model_name"] = values["served_model_name"] or values["model_path"]
