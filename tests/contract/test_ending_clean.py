"""The proof that GPUs are clean: said only with no holder and memory back, in one new reading."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from tests.nvml.cases import device, figure, process_facts

from kvctl.core.clock import ManualClock
from kvctl.core.domain.gpus.devices import (
    DeviceProcess,
    GpuDevice,
    GpuReading,
    GpuView,
    ProcessIdentity,
)
from kvctl.core.domain.gpus.holders import HostFacts, classify
from kvctl.core.domain.gpus.membership import KnownServer, Me
from kvctl.core.servers.processes.clean import CleanProof, held_lines, prove_clean

MIB = 1 << 20
ME = Me(1000, "op", 4)
RANK = process_facts(300, "sglang::scheduler_TP4")
GHOST_MIB = 93_699


def at(clock: ManualClock, *devices: GpuDevice, **host: object) -> GpuView:
    facts = HostFacts({300: RANK, 301: process_facts(301, "python train.py")}, **host)  # type: ignore[arg-type]
    return classify(GpuReading(clock.monotonic(), devices), facts, (), ME)


def held(index: int = 4, pid: int = 300, mib: int = GHOST_MIB) -> GpuDevice:
    return replace(device(index, used=(mib + 4) * MIB), processes=(DeviceProcess(pid, mib * MIB),))


def idle(index: int = 4) -> GpuDevice:
    return device(index, used=4 * MIB)


async def prove(
    clock: ManualClock,
    read: Callable[[], GpuView],
    timeout_s: float = 60,
    tolerate: tuple[ProcessIdentity, ...] = (),
    gpus: list[str] | None = None,
) -> CleanProof:
    """Prove on a clock that moves by itself until the proof is there."""

    async def ask() -> GpuView:
        return read()

    ask_typed: Callable[[], Awaitable[GpuView]] = ask
    task = asyncio.ensure_future(
        prove_clean(
            ask_typed,
            clock,
            idle_bytes={"GPU-4": 4 * MIB},
            gpus=gpus,
            timeout_s=timeout_s,
            tolerate=tolerate,
        )
    )
    while not task.done():
        await clock.advance(0.25)
    return task.result()


async def test_a_gpu_without_holder_and_at_its_idle_level_is_clean_at_once() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, idle()))
    assert proof.is_clean
    assert proof.lines() == (
        "GPU 4 clean after 0.0 s: no holder, 4 MiB used (idle level 4 MiB, seen before)",
    )
    assert proof.summary() == "1 of 1 GPUs clean after 0.0 s"


async def test_clean_is_said_when_the_last_gpu_is_free_and_each_with_its_time() -> None:
    clock = ManualClock()

    def read() -> GpuView:
        elapsed = clock.monotonic() - 1000
        return at(
            clock,
            idle(0) if elapsed >= 1 else held(0),
            idle(4) if elapsed >= 3 else held(4, 301),
        )

    proof = await prove(clock, read)
    assert proof.is_clean
    assert [gpu.after_s for gpu in proof.gpus] == [1.0, 3.0]
    assert proof.took_s == 3.0


async def test_a_holder_that_stays_is_named_with_its_memory_and_owner() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, held()), timeout_s=5)
    assert not proof.is_clean and not proof.is_satisfied
    (line,) = proof.lines()
    assert line.startswith("GPU 4 NOT clean after 5.0 s: GPU 4: 93,699 MiB held by 300 sglang::")
    assert "leftover" in line and "parent gone (now 1)" in line


async def test_a_holder_gone_is_not_enough_while_memory_is_still_used() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, device(4, used=GHOST_MIB * MIB)), timeout_s=1)
    assert not proof.is_clean
    assert "93,699 MiB still used" in proof.summary()
    assert "by no process here" in proof.summary()


async def test_memory_back_is_not_enough_while_a_holder_is_listed() -> None:
    clock = ManualClock()
    listed = replace(idle(), processes=(DeviceProcess(300, 0),))
    assert not (await prove(clock, lambda: at(clock, listed), timeout_s=1)).is_clean


async def test_a_reading_from_before_the_act_proves_nothing() -> None:
    clock = ManualClock()
    old = replace(at(clock, idle()), at=clock.monotonic() - 0.1)
    proof = await prove(clock, lambda: old, timeout_s=1)
    assert not proof.is_clean and "no reading since then" in proof.summary()


async def test_memory_that_cannot_be_read_proves_nothing() -> None:
    clock = ManualClock()
    blind = replace(idle(), memory_used_bytes=figure(None, "not permitted"))
    proof = await prove(clock, lambda: at(clock, blind), timeout_s=1)
    assert not proof.is_clean and "memory unknown (not permitted)" in proof.summary()


async def test_a_process_list_that_cannot_be_read_proves_nothing() -> None:
    clock = ManualClock()
    blind = replace(idle(), processes_problem="process list: not permitted")
    assert not (await prove(clock, lambda: at(clock, blind), timeout_s=1)).is_clean


async def test_a_lost_gpu_is_not_clean() -> None:
    clock = ManualClock()
    lost = replace(idle(), problem="GPU is lost")
    proof = await prove(clock, lambda: at(clock, lost), timeout_s=1)
    assert "no proof: GPU is lost" in proof.summary()


async def test_a_gpu_that_is_no_longer_listed_is_not_clean() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, idle(4)), timeout_s=1, gpus=["GPU-4", "GPU-7"])
    assert [gpu.is_clean for gpu in proof.gpus] == [True, False]
    assert "GPU-7 NOT clean" in proof.summary()


async def test_only_the_gpus_that_were_asked_for_are_waited_for() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, held(0), idle(4)), gpus=["GPU-4"])
    assert proof.is_clean and len(proof.gpus) == 1


async def test_a_holder_that_was_agreed_to_stay_is_named_and_its_memory_is_allowed() -> None:
    clock = ManualClock()
    foreign = held(4, 301, 2_000)
    proof = await prove(clock, lambda: at(clock, foreign), tolerate=(ProcessIdentity(301, 301),))
    assert proof.is_clean
    assert proof.lines()[0].endswith("beside 301 python train.py")


async def test_an_agreed_holder_does_not_cover_memory_that_is_not_its_own() -> None:
    clock = ManualClock()
    both = replace(held(4, 301, 2_000), memory_used_bytes=figure(9_000 * MIB))
    proof = await prove(
        clock, lambda: at(clock, both), timeout_s=1, tolerate=(ProcessIdentity(301, 301),)
    )
    assert not proof.is_clean


async def test_a_monitor_with_the_device_file_open_is_not_in_the_way() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, idle(), device_files={301: (4,)}))
    assert proof.is_clean


async def test_a_leftover_with_the_device_file_open_is_in_the_way() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, idle(), device_files={300: (4,)}), timeout_s=1)
    assert not proof.is_clean and "perhaps held by 300" in proof.summary()


async def test_unified_memory_is_proven_by_holders_alone_and_says_so() -> None:
    clock = ManualClock()
    shared = replace(device(4, used=90 << 30), is_unified=True)
    proof = await prove(clock, lambda: at(clock, shared))
    assert proof.is_clean and "only holders can be proven gone" in proof.lines()[0]


async def test_a_host_without_gpus_has_nothing_to_prove_and_says_why() -> None:
    clock = ManualClock()
    none = GpuView(at=clock.monotonic(), problem="no NVIDIA driver here", is_bare=True)
    proof = await prove(clock, lambda: none)
    assert not proof.is_clean and proof.is_satisfied
    assert proof.summary() == "nothing to prove clean: no NVIDIA driver here"


async def test_gpus_that_were_asked_for_are_not_clean_because_the_driver_is_silent() -> None:
    clock = ManualClock()
    silent = GpuView(at=clock.monotonic(), problem="NVML has not answered for 9 s")
    proof = await prove(clock, lambda: silent, timeout_s=1, gpus=["GPU-4"])
    assert not proof.is_satisfied and "NVML has not answered" in proof.summary()


async def test_a_driver_that_does_not_answer_is_not_taken_for_a_host_without_gpus() -> None:
    clock = ManualClock()
    silent = GpuView(at=clock.monotonic(), problem="NVML has not answered for 9 s")
    proof = await prove(clock, lambda: silent, timeout_s=1)
    assert not proof.is_satisfied and "NVML has not answered" in proof.summary()


async def test_devices_that_were_kept_from_an_older_reading_prove_nothing() -> None:
    clock = ManualClock()

    def kept() -> GpuView:
        return replace(at(clock, idle()), problem="the driver has not answered for 10 s")

    proof = await prove(clock, kept, timeout_s=1)
    assert not proof.is_clean and "has not answered" in proof.summary()


async def test_a_reading_that_times_out_is_tried_again_until_the_time_is_over() -> None:
    clock = ManualClock()

    def late() -> GpuView:
        if clock.monotonic() < 1002:
            raise TimeoutError("no answer within 1 s")
        return at(clock, idle())

    short = await prove(clock, late, timeout_s=1)
    assert not short.is_satisfied and "could not be read: no answer within 1 s" in short.summary()
    assert (await prove(clock, late)).is_clean


async def test_a_start_that_uses_no_gpu_has_nothing_to_prove() -> None:
    clock = ManualClock()
    proof = await prove(clock, lambda: at(clock, held()), gpus=[])
    assert proof.is_satisfied and not proof.is_clean


async def test_a_gpu_that_fills_again_is_not_clean_any_more() -> None:
    clock = ManualClock()

    def read() -> GpuView:
        elapsed = clock.monotonic() - 1000
        first = idle(0) if elapsed < 1 or elapsed >= 2 else held(0)
        return at(clock, first, idle(4) if elapsed >= 1.5 else held(4))

    proof = await prove(clock, read)
    assert [gpu.after_s for gpu in proof.gpus] == [2.0, 1.5]


def test_holders_are_told_one_line_each() -> None:
    clock = ManualClock()
    known = KnownServer("main", 300, 300, 300)
    view = classify(
        GpuReading(1.0, (held(4), held(5, 999, 10))), HostFacts({300: RANK}), (known,), ME
    )
    assert len(held_lines(view)) == 2
    assert clock.monotonic() == 1000
