"""Servers that kvctl did not start, and those an earlier kvctld left running."""

import asyncio

from tests.fakes.launcher import OOM, READY, Boot
from tests.fakes.rig import URL, Rig, rig_on

from kvctl.core.controller.commands import AdoptServer, ForgetServer, StartServer, StopServer
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.ports import ProbeFailed

# -- adopt and forget -------------------------------------------------------------------------


async def test_a_server_elsewhere_is_adopted_by_url_and_nothing_is_touched(rig: Rig) -> None:
    far = rig.remote("http://far:30000", others=2)
    outcome = await rig.submit(AdoptServer("http://far:30000/"))
    assert outcome.is_done and "nothing was touched" in outcome.message
    server = rig.server("port-30000")
    assert server.decode.running.value == 2 and not server.is_managed and server.pid is None
    await rig.advance(5)
    server = rig.server("port-30000")
    assert (server.state, server.model) == (ServerState.DECODING, "/models/tiny")
    assert far.calls == [] and rig.processes.sent == []


async def test_a_server_on_this_host_is_adopted_by_pid_and_by_address(rig: Rig) -> None:
    here = rig.local(30100)
    assert here.identity is not None
    by_pid = await rig.submit(AdoptServer(str(here.identity.pid), server="theirs"))
    assert by_pid.is_done and rig.server("theirs").pid == here.identity.pid
    again = await rig.submit(AdoptServer("localhost:30100"))
    assert again.exit_status == 4 and "watched already as theirs" in again.message


async def test_what_does_not_answer_is_not_adopted(rig: Rig) -> None:
    outcome = await rig.submit(AdoptServer("http://far:1"))
    assert outcome.exit_status == 1
    assert "does not answer as SGLang (refused: " in outcome.message
    assert rig.shot().servers == () and rig.now.remembered.servers == []


async def test_a_pid_that_is_no_server_is_a_usage_error(rig: Rig) -> None:
    outcome = await rig.submit(AdoptServer("1"))
    assert outcome.exit_status == 2 and "pid 1 is no SGLang server" in outcome.message


async def test_two_hosts_with_one_port_get_two_names(rig: Rig) -> None:
    for host in ("a", "b"):
        rig.remote(f"http://{host}:30000")
        assert (await rig.submit(AdoptServer(f"http://{host}:30000"))).is_done
    assert {s.url for s in rig.shot().servers} == {"http://a:30000", "http://b:30000"}
    assert len({s.name for s in rig.shot().servers}) == 2


async def test_a_name_that_is_taken_is_refused(rig: Rig) -> None:
    await rig.serving()
    rig.remote("http://a:30000")
    outcome = await rig.submit(AdoptServer("http://a:30000", server="main"))
    assert outcome.exit_status == 4 and "main" in outcome.message
    assert rig.server("main").url == URL


async def test_a_forgotten_server_goes_on(rig: Rig) -> None:
    started = await rig.serving()
    outcome = await rig.submit(ForgetServer())
    assert outcome.is_done and "it goes on" in outcome.message
    assert rig.shot().servers == () and rig.now.remembered.servers == []
    assert started.main.lives and rig.processes.sent == []
    assert (await rig.submit(ForgetServer())).exit_status == 2


async def test_a_server_that_is_being_started_cannot_be_forgotten(rig: Rig) -> None:
    task = rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: len(rig.launcher.started) == 1)
    outcome = await rig.submit(ForgetServer())
    assert outcome.exit_status == 4 and "cancel" in outcome.message
    await rig.clock.until(task.done)
    assert task.result().is_done and rig.server().state is ServerState.IDLE


# -- found ------------------------------------------------------------------------------------


async def test_servers_that_run_here_are_found_and_leave_the_list_when_they_end(rig: Rig) -> None:
    rig.finds_servers = True
    await rig.again()
    here = rig.local(30100)
    await rig.advance(12)
    assert rig.server("port-30100").state is ServerState.IDLE
    assert any("watched, not touched" in text for text in rig.events("found"))
    assert here.identity is not None
    rig.processes.end(here.identity)
    await rig.advance(12)
    assert rig.shot().servers == ()
    assert rig.events("gone") == ["port-30100 at http://127.0.0.1:30100 ended"]


async def test_a_server_of_kvctl_is_not_found_a_second_time(rig: Rig) -> None:
    rig.finds_servers = True
    await rig.again()
    await rig.serving()
    await rig.advance(25)
    assert [s.name for s in rig.shot().servers] == ["main"]


# -- after kvctld's death ---------------------------------------------------------------------


async def test_a_server_that_lives_is_readopted_with_all_that_was_known(rig: Rig) -> None:
    started = await rig.serving()
    before = rig.server()
    await rig.again()
    await rig.advance(5)
    after = rig.server()
    assert (after.pid, after.preset, after.state) == (
        started.launched.pid,
        "small",
        ServerState.IDLE,
    )
    assert after.flags == before.flags and after.is_managed
    assert after.decode.pool_tokens.value == 100_000
    assert after.available_gpu_memory_gb == 7.5
    assert any("goes on" in text for text in rig.events("adopted"))
    outcome = await rig.submit(StopServer())
    assert outcome.is_done and "GPUs clean" in outcome.message


async def test_how_long_a_start_took_is_kept_over_the_death_of_kvctld(rig: Rig) -> None:
    await rig.serving()
    before = rig.server()
    await rig.advance(60)
    await rig.again()
    await rig.advance(5)
    after = rig.server()
    assert before.ready_after_s is not None and before.ready_after_s < 10
    assert (after.ready_wall, after.ready_after_s) == (before.ready_wall, before.ready_after_s)


async def test_a_start_that_ended_while_no_kvctld_looked_has_no_time(rig: Rig) -> None:
    task = rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: len(rig.launcher.started) == 1)
    await rig.kill()
    await asyncio.gather(task, return_exceptions=True)
    await rig.advance(100)
    await rig.begin()
    await rig.clock.until(lambda: rig.server().state is ServerState.IDLE, 30)
    await rig.clock.until(lambda: bool(rig.events("ready")), 30)
    assert (rig.server().ready_wall, rig.server().ready_after_s) == (None, None)
    assert "serves as main, pool 100,000 tokens" in rig.events("ready")[0]
    (launch,) = rig.now.ledger.records()
    assert launch.was_ready and launch.ready_after_s is None


async def test_a_server_that_was_found_tells_no_time_of_readiness(rig: Rig) -> None:
    rig.finds_servers = True
    await rig.again()
    rig.local(30100)
    await rig.advance(12)
    assert rig.server("port-30100").state is ServerState.IDLE
    assert rig.server("port-30100").ready_wall is None


async def test_a_server_that_died_meanwhile_is_shown_failed_with_its_cause(rig: Rig) -> None:
    started = await rig.serving()
    await rig.kill()
    rig.world.write(started.launched.log_path, *OOM)
    rig.processes.end(started.launched.identity, status=1)
    await rig.begin()
    await rig.advance(3)
    server = rig.server()
    assert server.state is ServerState.FAILED
    assert server.failure is not None and "memory" in server.failure.headline
    assert any("ended while kvctld was away" in text for text in rig.events("gone"))
    assert (await rig.submit(StartServer("small"))).is_done


async def test_a_reused_pid_is_not_taken_for_the_server(rig: Rig) -> None:
    started = await rig.serving()
    await rig.kill()
    other = rig.processes.reuse(started.launched.identity, "vim notes.txt")
    await rig.begin()
    await rig.advance(3)
    assert rig.server().state is ServerState.FAILED
    await rig.submit(StopServer())
    assert other.lives and rig.processes.signals_to(other.facts.identity) == []


async def test_a_start_in_progress_goes_on_without_kvctld_and_is_taken_up(rig: Rig) -> None:
    slow = Boot(steps=((0.2, Boot().steps[0][1]), (30.0, READY)))
    rig.launcher.boots = [slow]
    rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: len(rig.launcher.started) == 1)
    await rig.advance(5)
    await rig.again()
    await rig.advance(2)
    assert rig.server().state is ServerState.STARTING
    await rig.advance(45)
    assert rig.server().state is ServerState.IDLE and rig.server().preset == "small"
    assert rig.processes.sent == []


async def test_a_leaving_kvctld_lets_a_start_go_on(rig: Rig) -> None:
    slow = Boot(steps=((0.2, Boot().steps[0][1]), (30.0, READY)))
    rig.launcher.boots = [slow]
    task = rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: len(rig.launcher.started) == 1)
    await rig.end()
    await rig.clock.until(task.done, 5)
    await rig.begin()
    await rig.advance(45)
    assert rig.server().state is ServerState.IDLE
    assert rig.launcher.started[0].main.lives and rig.processes.sent == []


async def test_leftovers_of_a_server_of_the_past_are_known_as_ours(rig: Rig) -> None:
    started = await rig.serving(boot=Boot(leaves_behind=True))
    await rig.kill()
    rig.processes.end(started.launched.identity, status=-9)
    await rig.begin()
    await rig.advance(3)
    (left,) = rig.shot().gpus.leftovers
    assert left.pid == started.scheduler.facts.identity.pid and left.server == "main"


async def test_two_rigs_share_nothing(rig: Rig) -> None:
    other = rig.folder / "other"
    other.mkdir()
    async with rig_on(other) as second:
        await rig.serving()
        assert second.shot().servers == ()


# -- states -----------------------------------------------------------------------------------


async def test_a_silent_server_is_unreachable_and_comes_back(rig: Rig) -> None:
    started = await rig.serving()
    started.server.failing["loads"] = ProbeFailed("timeout", "/v1/loads: no answer")
    await rig.advance(25)
    server = rig.server()
    assert server.state is ServerState.UNREACHABLE and "timeout" in server.state_reason
    assert rig.events("unreachable")
    del started.server.failing["loads"]
    await rig.advance(25)
    assert rig.server().state is ServerState.IDLE and rig.events("back")


async def test_a_hung_scheduler_is_stalled_although_its_front_end_answers(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 3
    await rig.advance(10)
    started.server.hang()
    await rig.advance(10)
    frozen = rig.server().decode
    assert frozen.is_frozen and frozen.running.value == 3
    age = frozen.running.age_s(rig.shot().at)
    assert age is not None and age >= 9
    await rig.advance(60)
    assert rig.server().state is ServerState.STALLED
    assert rig.shot().verdicts[0].word.value == "STALLED"


async def test_unknown_figures_say_why_and_none_is_zero_in_its_place(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 3
    rig.processes.end(started.launched.identity, status=1)
    await rig.advance(3)
    decode = rig.server().decode
    for name in ("running", "queued", "token_usage", "generation_tokens_per_s", "pool_tokens"):
        figure = getattr(decode, name)
        assert figure.value is None and figure.reason, name


async def test_a_freeze_by_another_is_told_from_a_hang_and_stalls_after_thirty_seconds(
    rig: Rig,
) -> None:
    started = await rig.serving()
    started.server.others = 3
    await rig.advance(10)
    started.server.hang()  # the fake's /ready refuses while it stands still, as in a pause
    await rig.advance(6)
    assert "paused by another: /ready refuses" in rig.server().state_reason
    await rig.advance(22)
    assert rig.server().state is ServerState.DECODING
    await rig.advance(5)
    assert rig.server().state is ServerState.STALLED


async def test_a_watchdog_that_kills_a_server_paused_in_place_is_told_with_the_pause(
    rig: Rig,
) -> None:
    started = await rig.serving()
    path = rig.server().log_path
    assert path is not None
    stamp = "[2026-11-29 12:09:51]"
    rig.world.write(
        path,
        f'{stamp} INFO:     127.0.0.1:1 - "POST /pause_generation HTTP/1.1" 200 OK',
        f"{stamp} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        f"{stamp} SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    )
    await rig.advance(1)
    rig.processes.end(started.launched.identity, status=-9)
    await rig.advance(3)
    server = rig.server()
    assert server.state is ServerState.FAILED and server.failure is not None
    assert any("paused in place before" in advice for advice in server.failure.advice)


async def test_effective_flags_are_known_once_the_server_has_told_them(rig: Rig) -> None:
    rig.finds_servers = True
    await rig.again()
    started = await rig.serving()
    assert started.server.flags == {} and rig.server().effective == ()
    started.server.flags["mem_fraction_static"] = 0.75
    await rig.again()
    await rig.advance(8)
    flag = next(f for f in rig.server().effective if f.name == "mem-fraction-static")
    assert (flag.value, flag.given, flag.differs) == ("0.75", "0.8", ("given",))
    assert not rig.server().are_defaults_known
