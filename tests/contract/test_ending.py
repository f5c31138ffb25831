"""Ending real process trees that look like SGLang's, and what is said of each."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.nvml.cases import process_facts
from tests.nvml.tree import Grove, Server, identity_of

from kvctl.core.clock import RealClock
from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity
from kvctl.core.domain.gpus.membership import KnownServer
from kvctl.core.probes.processes import HostProcesses
from kvctl.core.servers.processes.ending import (
    EndOutcome,
    EndReport,
    end_group,
    end_processes,
    launch_group,
)

pytest_plugins = ["tests.nvml.fixtures"]

TERM, KILL = signal.SIGTERM, signal.SIGKILL
HOST = HostProcesses()
ROOT = Path(__file__).parents[2]
MAIN = "python -m sglang.launch_server"


async def end(
    *targets: ProcessIdentity,
    first: signal.Signals = TERM,
    wait_s: float = 5,
    escalate: bool = False,
) -> EndReport:
    return await end_processes(
        HOST, RealClock(), targets, first=first, wait_s=wait_s, escalate=escalate
    )


def known(server: Server, *tree: ProcessIdentity) -> KnownServer:
    main = server.main
    return KnownServer("main", main.pid, main.start_ticks, main.pid, tree=tree)


async def test_term_ends_a_process_and_the_report_says_when(grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_TP4")
    report = await end(one)
    (target,) = report.targets
    assert report.are_all_gone and target.outcome is EndOutcome.GONE
    assert [sent.name for sent in target.signals] == ["TERM"]
    assert target.signals[0].at <= target.at
    assert target.line().startswith(f"{one.pid} sglang::scheduler_TP4 600: gone 0.")


async def test_a_process_that_ignores_term_is_not_called_gone(grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_TP4", ignores_term=True)
    report = await end(one, wait_s=0.3)
    assert report.targets[0].outcome is EndOutcome.IGNORED
    assert not report.are_all_gone
    assert HOST.is_alive(one)


async def test_kill_follows_where_term_was_ignored(grove: Grove) -> None:
    stubborn = grove.sleeper("sglang::scheduler_TP4", ignores_term=True)
    meek = grove.sleeper("sglang::scheduler_TP5")
    report = await end(stubborn, meek, wait_s=0.3, escalate=True)
    assert report.are_all_gone
    names = [[sent.name for sent in target.signals] for target in report.targets]
    assert names == [["TERM", "KILL"], ["TERM"]]
    assert "TERM ignored, gone" in report.targets[0].detail


async def test_a_reused_pid_gets_no_signal_and_is_named(grove: Grove) -> None:
    canary = grove.sleeper("canary")
    stale = replace(canary, start_ticks=canary.start_ticks - 1)
    report = await end(stale, first=KILL)
    assert report.targets[0].outcome is EndOutcome.REUSED
    assert "canary 600" in report.targets[0].detail
    assert HOST.is_alive(canary)


async def test_what_had_ended_before_gets_no_signal(grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_TP4")
    grove.clear()
    report = await end(one)
    assert report.targets[0].outcome is EndOutcome.ALREADY_GONE
    assert report.targets[0].signals == ()


async def test_init_and_this_process_are_refused_and_live_on() -> None:
    report = await end(identity_of(1), identity_of(os.getpid()), first=KILL, wait_s=0.1)
    assert {target.outcome for target in report.targets} == {EndOutcome.REFUSED}
    assert not report.are_all_gone


async def test_a_target_named_twice_gets_one_signal(grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_TP4")
    report = await end(one, one)
    assert len(report.targets) == 1


async def test_a_whole_launch_is_collected_and_nothing_else(grove: Grove) -> None:
    server = grove.server(MAIN, "sglang::scheduler_TP0", "sglang::scheduler_TP1", flags=["i", "s"])
    other = grove.server(MAIN, "sglang::scheduler_TP0")
    canary = grove.sleeper("sglang::scheduler_TP9")
    group = [p.identity for p in launch_group(HOST, known(server))]
    assert group[0] == server.main
    assert set(group) == {server.main, *server.children}
    assert canary not in group and other.main not in group


async def test_the_orphans_of_a_killed_server_are_still_its_group(grove: Grove) -> None:
    server = grove.server(
        MAIN, "sglang::scheduler_TP0", "python -c from multiprocessing.spawn import spawn_main"
    )
    grove.behead(server)
    group = {p.identity for p in launch_group(HOST, known(server))}
    assert group == set(server.children)


async def test_an_orphan_in_another_session_is_found_by_the_recorded_tree(grove: Grove) -> None:
    server = grove.server(MAIN, "sglang::scheduler_TP0", flags=["s"])
    grove.behead(server)
    assert launch_group(HOST, known(server)) == ()
    group = [p.identity for p in launch_group(HOST, known(server, *server.children))]
    assert group == list(server.children)


async def test_a_tree_like_sglangs_is_cleared_whole_and_its_neighbours_live(grove: Grove) -> None:
    server = grove.server(
        MAIN,
        "sglang::scheduler_TP0",
        "sglang::scheduler_TP1",
        "sglang::detokenizer",
        flags=["i", "s", ""],
    )
    canaries = [grove.sleeper("sglang::scheduler_TP0"), grove.sleeper("canary")]
    record = known(server, *server.children)
    grove.behead(server)
    report = await end_group(
        HOST,
        RealClock(),
        lambda: launch_group(HOST, record),
        first=TERM,
        wait_s=0.3,
        escalate=True,
    )
    assert report.are_all_gone
    assert {target.identity for target in report.targets} == set(server.children)
    assert launch_group(HOST, record) == ()
    assert all(HOST.is_alive(canary) for canary in canaries)


async def test_random_kills_never_reach_a_process_that_was_not_named(grove: Grove) -> None:
    """Identities go stale while they are used; canaries with neighbouring pids prove it."""
    rng = random.Random(7)
    canaries = [grove.sleeper("canary") for _ in range(4)]
    stale: list[ProcessIdentity] = []
    for _ in range(30):
        victims = [grove.sleeper("sglang::scheduler_TP0") for _ in range(rng.randint(1, 3))]
        wrong = [replace(c, start_ticks=c.start_ticks + rng.choice((-1, 1))) for c in canaries]
        targets = [*victims, *stale[-5:], *rng.sample(wrong, 2)]
        rng.shuffle(targets)
        report = await end(*targets, first=rng.choice((TERM, KILL)))
        assert {t.identity for t in report.targets if t.signals} == set(victims)
        stale += victims
    assert all(HOST.is_alive(canary) for canary in canaries)


def reuse_rounds(rounds: int) -> list[dict[str, int]]:
    """Run real rounds of start, end and pid reuse in a pid namespace of their own."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--map-root-user", "--user"]
    if os.getuid() == 0:
        words = words[:4]
    command = [*words, sys.executable, "-m", "tests.nvml.reuse_rounds", str(rounds)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=500, cwd=ROOT
    )
    if "unshare" in done.stderr or "No such file" in done.stderr:
        pytest.skip("no pid namespace can be made here")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, int]] = [json.loads(line) for line in done.stdout.splitlines()]
    return found


def check_rounds(rows: list[dict[str, int]]) -> None:
    assert sum(row["reused"] for row in rows) >= len(rows) // 4, "no pid was really reused"
    assert all(row["canaries_hit"] == 0 for row in rows)
    assert all(row["victims_left"] == 0 for row in rows)
    assert all(row["is_container"] == 1 for row in rows)


def test_a_pid_that_was_really_reused_never_gets_the_signal_meant_for_another() -> None:
    check_rounds(reuse_rounds(25))


@pytest.mark.soak
def test_a_thousand_rounds_of_start_end_and_reuse_hit_no_other_process() -> None:
    check_rounds(reuse_rounds(1000))


@dataclass
class ScriptedProcesses:
    """Processes that a test scripts: state D, a pid taken over, a group that comes back."""

    facts_of: dict[int, ProcessFacts]
    sent: list[tuple[int, str]] = field(default_factory=list)
    refuses: bool = False

    def facts(self, pid: int) -> ProcessFacts | None:
        return self.facts_of.get(pid)

    def environment(self, identity: ProcessIdentity, name: str) -> str | None:
        return None

    def all_facts(self) -> Sequence[ProcessFacts]:
        return list(self.facts_of.values())

    def device_file_holders(self) -> Mapping[int, tuple[int, ...]]:
        return {}

    def is_alive(self, identity: ProcessIdentity) -> bool:
        facts = self.facts_of.get(identity.pid)
        return facts is not None and facts.identity == identity

    def send(self, identity: ProcessIdentity, number: signal.Signals) -> None:
        if self.refuses:
            raise PermissionError(1, "Operation not permitted")
        if not self.is_alive(identity):
            raise ProcessLookupError
        self.sent.append((identity.pid, number.name))
        if self.facts_of[identity.pid].state != "D":
            del self.facts_of[identity.pid]


async def test_a_process_that_kill_cannot_end_is_called_stuck_with_what_can_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvctl.core.servers.processes.ending.KILL_WAIT_S", 0.1)
    stuck = process_facts(300, "sglang::scheduler_TP1", state="D")
    host = ScriptedProcesses({300: stuck})
    report = await end_processes(
        host, RealClock(), [stuck.identity], first=TERM, wait_s=0.1, escalate=True
    )
    assert host.sent == [(300, "SIGTERM"), (300, "SIGKILL")]
    assert report.targets[0].outcome is EndOutcome.STUCK
    assert "KILL cannot work until the kernel lets go" in report.targets[0].detail


async def test_a_signal_that_the_kernel_forbids_is_reported_and_not_repeated() -> None:
    other = process_facts(300, "sglang::scheduler_TP1", user="alice")
    host = ScriptedProcesses({300: other}, refuses=True)
    report = await end_processes(
        host, RealClock(), [other.identity], first=TERM, wait_s=0.1, escalate=True
    )
    assert report.targets[0].outcome is EndOutcome.REFUSED
    assert "not permitted" in report.targets[0].line()


async def test_what_something_starts_again_is_reported_as_coming_back() -> None:
    host = ScriptedProcesses({})
    pids = iter(range(300, 400))

    def collect() -> list[ProcessFacts]:
        fresh = process_facts(next(pids), "sglang::scheduler_TP0", parent_pid=77)
        host.facts_of[fresh.identity.pid] = fresh
        return [fresh]

    report = await end_group(host, RealClock(), collect, first=TERM, wait_s=0.1, escalate=False)
    assert not report.are_all_gone
    assert "something starts it again (parent 77)" in report.lines()[-1]
