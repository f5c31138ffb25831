"""The live cap: read back, remembered, put back when run or kvctld end or the operator says so."""

from tests.fakes.rig import Rig
from tests.fakes.sglang import FakeServer

from kvctl.core.controller.commands import CapServer, CloseRun, ForgetServer
from kvctl.core.ports import ProbeFailed


async def capped(rig: Rig, running: int = 8) -> FakeServer:
    server = (await rig.serving()).server
    server.live_cap = 2048
    outcome = await rig.submit(CapServer(running))
    assert outcome.is_done, outcome.message
    return server


async def test_a_cap_is_read_back_shown_and_told(rig: Rig) -> None:
    server = await capped(rig)
    assert server.live_cap == rig.server().live_cap == 8
    assert rig.events("cap")[0].startswith("main runs at most 8 requests (its own cap: 2048)")


async def test_the_operator_lifts_it_and_the_servers_own_is_back(rig: Rig) -> None:
    server = await capped(rig)
    assert (await rig.submit(CapServer(4))).is_done
    outcome = await rig.submit(CapServer(None))
    assert outcome.message == "main has its own cap of 2048 again"
    assert server.calls == ["cap 8", "cap 4", "cap 2048"]
    assert rig.server().live_cap is None
    assert (await rig.submit(CapServer(None))).message == "main has no cap of kvctl's"


async def test_a_server_without_the_lever_is_refused_in_one_line(rig: Rig) -> None:
    await rig.serving()
    outcome = await rig.submit(CapServer(8))
    assert outcome.exit_status == 4
    assert "main takes no live cap" in outcome.message
    assert "kvctl run throttle N" in outcome.message and "\n" not in outcome.message


async def test_a_number_out_of_the_servers_range_is_refused_before_it_is_sent(rig: Rig) -> None:
    server = (await rig.serving()).server
    server.live_cap = 64
    for running in (0, 65):
        outcome = await rig.submit(CapServer(running))
        assert outcome.exit_status == 2
        assert outcome.message == f"the cap of main is 1 to 64: {running}"
    assert server.calls == []


async def test_what_the_server_rejected_is_not_remembered(rig: Rig) -> None:
    server = (await rig.serving()).server
    server.live_cap = 64
    server.failing["set_live_cap"] = ProbeFailed("rejected", "the server kept its cap of 64")
    assert (await rig.submit(CapServer(8))).exit_status == 4
    assert rig.server().live_cap is None
    assert rig.now.remembered.servers[0].cap_before is None


async def test_without_an_answer_it_stays_remembered_and_can_be_lifted(rig: Rig) -> None:
    server = (await rig.serving()).server
    server.live_cap = 64
    server.failing["set_live_cap"] = ProbeFailed("timeout", "no answer in 5 s")
    outcome = await rig.submit(CapServer(8))
    assert outcome.exit_status == 1 and "kvctl server cap off" in outcome.message
    server.failing.clear()
    server.live_cap = 8
    assert (await rig.submit(CapServer(None))).is_done
    assert server.live_cap == 64


async def test_the_end_of_the_run_lifts_it(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(300, tokens=300))
    server.live_cap = 2048
    await rig.submit(CapServer(8))
    await rig.advance(3)
    assert server.live_cap == 8
    await rig.submit(CloseRun())
    await rig.advance(3)
    assert server.live_cap == 2048
    assert rig.events("cap")[-1] == "the run is over: main has its own cap of 2048 again"


async def test_a_cap_without_a_run_stays_until_kvctld_leaves(rig: Rig) -> None:
    server = await capped(rig)
    await rig.advance(30)
    assert server.live_cap == 8
    await rig.during(rig.now.close())
    assert server.live_cap == 2048


async def test_it_is_remembered_over_the_death_of_kvctld(rig: Rig) -> None:
    server = await capped(rig)
    await rig.again()
    assert "main still has the cap that kvctl set (its own: 2048)" in rig.events("cap")[-1]
    assert (await rig.submit(CapServer(None))).is_done
    assert server.live_cap == 2048


async def test_a_capped_server_is_not_forgotten(rig: Rig) -> None:
    await capped(rig)
    outcome = await rig.submit(ForgetServer())
    assert outcome.exit_status == 4 and "kvctl server cap off" in outcome.message
