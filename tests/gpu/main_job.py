"""kvctl drives a real server on this host: `python -m tests.gpu.main_job STAGE... [options]`.

Stages: start (launch, GPUs), phases (AUTO against fixed slots in one run), sweep (the same, each
from an empty server), acts (pause to kill -9), finish
(count, stop). They share `--work`; server, kvctld and run live on between calls. $KVCTL is the
command (default: kvctl). Exit status 1 if any claim did not hold. README.md beside this says how.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.gpu.acts import acts, finish
from tests.gpu.job import Plan, open_job
from tests.gpu.load import Load
from tests.gpu.phases import phases
from tests.gpu.starting import start
from tests.gpu.sweep import sweep

STAGES = {"start": start, "phases": phases, "sweep": sweep, "acts": acts, "finish": finish}


def read_words(words: list[str]) -> argparse.Namespace:
    """Return the options; the defaults are those of one H200."""
    parser = argparse.ArgumentParser(prog="main_job", allow_abbrev=False)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="h200-8b")
    parser.add_argument("--denied", default="h200-8b-fp8")
    parser.add_argument("--deny", default="kv-cache-dtype=fp8*")
    parser.add_argument("--phases", default="auto,150,72,auto")
    parser.add_argument("--phase-s", type=float, default=105)
    parser.add_argument("--settle-s", type=float, default=25)
    parser.add_argument("--within-s", type=float, default=float("inf"))
    parser.add_argument("--look-s", type=float, default=10)
    parser.add_argument("--rows", type=int, default=360)
    parser.add_argument("--mean", type=int, default=2000)
    parser.add_argument("--most", type=int, default=6000)
    parser.add_argument("--prompt", default="400,600")
    parser.add_argument("--vocabulary", type=int, default=128_000)
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run the stages in order."""
    given = read_words(words)
    shortest, longest = map(int, given.prompt.split(","))
    plan = Plan(
        work=given.work.absolute(),
        out=given.out.absolute(),
        preset=given.preset,
        denied=given.denied,
        deny=given.deny,
        load=Load(given.mean, given.most, (shortest, longest), given.vocabulary),
        phases=tuple(given.phases.split(",")),
        phase_s=given.phase_s,
        settle_s=given.settle_s,
        rows=given.rows,
        look_s=given.look_s,
        ends_at=time.monotonic() + given.within_s,
    )
    failed = 0
    for stage in given.stages:
        job = open_job(plan, stage)
        STAGES[stage](job)
        failed += sum(not check["holds"] for check in job.checks)
        job.kvctl.note(f"{stage}: {len(job.checks)} claims, {failed} failed so far")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
