"""SGLang version numbers, compared far enough to know what a server can do."""

import re

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?P<rest>.*)")
_PRERELEASE = re.compile(r"\.?-?(?:a|b|rc|dev|alpha|beta)", re.IGNORECASE)


def is_at_least(version: str | None, minimum: tuple[int, int, int]) -> bool:
    """Return whether a version is known and not older; a pre-release counts as older.

    >>> is_at_least("0.5.23", (0, 5, 6)), is_at_least("0.5.6rc1", (0, 5, 6))
    (True, False)
    """
    match = _RELEASE.match(version or "")
    if match is None:
        return False
    release = (int(match[1]), int(match[2]), int(match[3] or 0))
    if release == minimum and _PRERELEASE.match(match["rest"]):
        return False
    return release >= minimum
