"""Moments as an operator types them: "30m" ago, "14:05", "2026-11-29T14:05"; standard library."""

import argparse
import re
from collections.abc import Callable
from datetime import datetime, timedelta

SinceNow = Callable[[float], float]
"""Now (UTC seconds) to the moment that is meant."""

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])\Z")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WANTED = "a time such as 30m, 2h, 14:05 or 2026-11-29T14:05"


def since(text: str) -> SinceNow:
    """Return how to find the moment of a word; argparse tells one that is none.

    >>> since("30m")(1_000_000.0)
    998200.0
    """
    if ago := _AGO.match(text):
        seconds = float(ago[1]) * _SECONDS[ago[2]]
        return lambda now: now - seconds
    try:
        if "T" in text or " " in text or "-" in text:
            wall = datetime.fromisoformat(text).timestamp()
            return lambda now: wall
        time_of_day = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M")
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not {_WANTED}") from None
    return lambda now: _latest(time_of_day, now)


def _latest(time_of_day: datetime, now: float) -> float:
    """Return when it last was this time of day, local time."""
    today = datetime.fromtimestamp(now)
    then = today.replace(
        hour=time_of_day.hour, minute=time_of_day.minute, second=time_of_day.second, microsecond=0
    )
    return (then if then <= today else then - timedelta(days=1)).timestamp()
