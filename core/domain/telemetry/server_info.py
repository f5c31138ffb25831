"""The answer of /server_info as typed facts, secrets masked where they enter.

Source: /server_info (0.5.6 and later) and /get_server_info, SGLang 0.4.6 to 0.5.23. Top-level
values are those of the start; live ones stand in `internal_states`, one a DP rank.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from kvctl.core.domain.jsonfields import Json, as_list, as_mapping, count, number, text
from kvctl.core.domain.telemetry.readings import ServerInfo

MASK = "***"
_SECRET_NAME = re.compile(
    r"(?:api_?key|access_key|password|secret|secret_key|auth_token|hf_token|access_token|token"
    r"|credentials?|watermark_key(?:_b)?)$"
)
_SECRETS = ("api-key", "admin-api-key", "ssl-keyfile-password", "watermark-key")
"""Flags whose abbreviations are secret too: argparse takes `--api` for `--api-key`."""
_IN_TEXT = re.compile(
    r"(?i)(\w*(?:api_?key|access_key|password|secret|token)\w*[\"']?\s*[:=]\s*[\"']?)[^\s\"',}]+"
)
_NOT_FLAGS = frozenset(
    {
        "internal_states",
        "status",
        "startup_time",
        "kv_events",
        "version",
        "launch_command",
        "frontend",
        "max_total_num_tokens",
        "max_req_input_len",
        "hicache_object_layout",
        "custom_sigquit_handler",
    }
)
_CAP_NAMES = ("pp_max_micro_batch_size", "max_micro_batch_size")


def parse_server_info(body: Json, at: float) -> ServerInfo | None:
    """Return the facts of a /server_info answer, None if it is not one."""
    outer = as_mapping(body)
    if not outer:
        return None
    states = [as_mapping(state) for state in as_list(outer.get("internal_states"))]
    first: Mapping[str, Json] = states[0] if states else {}
    command = text(outer, "launch_command")
    return ServerInfo(
        at=at,
        version=text(outer, "version"),
        flags={k: masked(k, v) for k, v in outer.items() if _is_flag(k)},
        pool_tokens=_pool_tokens(outer, first),
        max_running=_max_running(outer, first),
        live_cap=next((cap for name in _CAP_NAMES if (cap := count(first, name))), None),
        last_gen_throughput=_throughput(states),
        launch_command=None if command is None else mask_command(command),
        live_flags={k: masked(k, v) for k, v in first.items() if _is_live(k, v, outer)},
    )


def masked(name: str, value: Json) -> Json:
    """Return a flag's value, or a mask where the name says that it is a secret."""
    is_secret = _SECRET_NAME.search(name.replace("-", "_").lower()) is not None
    if is_secret and not isinstance(value, int | float):
        return MASK if value not in (None, "", [], {}) else value
    if isinstance(value, Mapping):
        return {key: masked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _IN_TEXT.sub(rf"\1{MASK}", value)
    return value


def mask_command(command: str) -> str:
    """Return a command line with the values of secret flags masked.

    >>> mask_command("--api-key sk-1 --max-total-tokens 4096")
    '--api-key *** --max-total-tokens 4096'
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return " ".join(w if MASK in w else shlex.quote(w) for w in _masked_words(words))


def _masked_words(words: Sequence[str]) -> list[str]:
    """Return words with what follows a secret flag masked, also where it begins with a dash."""
    shown: list[str] = []
    is_value = False
    for word in words:
        flag, equals, value = word.partition("=")
        if is_value and not (word.startswith("--") and is_secret_flag(flag)):
            shown.append(MASK)
            is_value = False
        elif is_secret_flag(flag):
            shown.append(f"{flag}={MASK}" if equals and value else word)
            is_value = not equals
        else:
            shown.append(_IN_TEXT.sub(rf"\1{MASK}", word))
    return shown


def is_secret_flag(word: str) -> bool:
    """Return whether a word is a flag, or an abbreviation of one, whose value is a secret."""
    if not word.startswith("--") or len(word) < 4:
        return False
    name = word[2:].replace("_", "-")
    if any(secret.startswith(name) for secret in _SECRETS):
        return True
    return _SECRET_NAME.search(name.replace("-", "_").lower()) is not None


def _is_live(name: str, value: Json, outer: Mapping[str, Json]) -> bool:
    return name in outer and _is_flag(name) and value != outer[name]


def _is_flag(name: str) -> bool:
    return name not in _NOT_FLAGS and not name.startswith("_")


def _pool_tokens(outer: Mapping[str, Json], first: Mapping[str, Json]) -> int | None:
    pool = count(outer, "max_total_num_tokens")
    if pool is None:
        pool = count(as_mapping(first.get("memory_usage")), "token_capacity")
    return pool


def _max_running(outer: Mapping[str, Json], first: Mapping[str, Json]) -> int | None:
    effective = count(first, "effective_max_running_requests_per_dp")
    return count(outer, "max_running_requests") if effective is None else effective


def _throughput(states: list[Mapping[str, Json]]) -> float | None:
    rates = [number(state, "last_gen_throughput") for state in states]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
