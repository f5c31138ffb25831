"""Numbers as people read them: durations in two units, tokens, bytes, clock times."""

import time

GIB = 1 << 30
MIB = 1 << 20


def duration(seconds: float | None) -> str:
    """Return seconds as at most two units: "8 s", "10 m 21 s", "7 h 14 m", "3 d 02 h"."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def thousands(value: float | None) -> str:
    """Return a count with separators: "159,277"."""
    return "–" if value is None else f"{value:,.0f}"


def kilo_tokens(value: float | None) -> str:
    """Return tokens shortly: "950", "4.1K", "159K"."""
    if value is None:
        return "–"
    if value < 1000:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}K" if value < 99_950 else f"{value / 1000:.0f}K"


def gib(value: float | None) -> str:
    """Return bytes in GiB with one decimal: "91.5 GiB"."""
    return "–" if value is None else f"{value / GIB:.1f} GiB"


def mib(value: float | None) -> str:
    """Return bytes in whole MiB: "93,699 MiB"."""
    return "–" if value is None else f"{value / MIB:,.0f} MiB"


def clock_time(wall: float | None) -> str:
    """Return local time of day: "12:26:00"."""
    return "–" if wall is None else time.strftime("%H:%M:%S", time.localtime(wall))


def day_time(wall: float | None, now_wall: float) -> str:
    """Return when, with the weekday if it is not today: "22:45", "Wed 22:45"."""
    if wall is None:
        return "–"
    then, now = time.localtime(wall), time.localtime(now_wall)
    same_day = (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday)
    if abs(wall - now_wall) > 6 * 86400:
        return time.strftime("%d %b %H:%M", then)
    return time.strftime("%H:%M" if same_day else "%a %H:%M", then)
