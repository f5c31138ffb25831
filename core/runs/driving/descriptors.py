"""Room for a run's connections among the files that this process may have open.

Every request in flight is an open file. The soft limit is raised as far as it is needed, before
the requests are sent; the hard limit is the host's and only root raises it.
"""

import resource

RESERVED = 256
"""Files for everything else: journal, inputs, logs, kvctld's clients, the other connections."""


def room_for(requests: int) -> int:
    """Return how many requests may be in flight, at most `requests`; raises the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = requests + RESERVED
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return requests
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if reachable > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return min(requests, max(1, reachable - RESERVED))


def why_capped(requests: int, room: int) -> str:
    """Return why fewer requests are sent than wanted, and what to do, in one line."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"{room:,} of {requests:,} slots are used: this process may open no more than {hard:,} "
        "files: start kvctld with a higher hard limit (ulimit -Hn, or LimitNOFILE= of its unit)"
    )
