from dataclasses import replace

from tests.nvml.cases import device, process_facts

from kvctl.core.domain.gpus.devices import DeviceProcess, GpuDevice, GpuReading, GpuView, HolderKind
from kvctl.core.domain.gpus.holders import HostFacts, classify
from kvctl.core.domain.gpus.holding import (
    confirmation_text,
    describe,
    idle_limit,
    learn_idle,
    signal_refusal,
    standing_holders,
    unexplained_bytes,
)
from kvctl.core.domain.gpus.membership import Me
from kvctl.core.domain.gpus.supervisors import Owner

MIB = 1 << 20
GIB = 1 << 30
ME = Me(1000, "op", 4)


def view(one: GpuDevice, host: HostFacts | None = None) -> GpuView:
    return classify(GpuReading(1.0, (one,)), host or HostFacts(), (), ME)


def test_memory_that_no_process_explains_is_used_minus_the_processes() -> None:
    held = replace(device(0, used=100 * MIB), processes=(DeviceProcess(7, 60 * MIB),))
    assert unexplained_bytes(held, view(held).holders) == 40 * MIB


def test_processes_that_sum_to_more_than_used_leave_nothing_unexplained() -> None:
    held = replace(device(0, used=100 * MIB), processes=(DeviceProcess(7, 160 * MIB),))
    assert unexplained_bytes(held, view(held).holders) == 0


def test_an_unreadable_process_list_leaves_the_remainder_unknown() -> None:
    held = replace(device(0, used=100 * MIB), processes_problem="not permitted")
    assert unexplained_bytes(held, ()) is None


def test_the_idle_level_is_the_lowest_use_seen_without_holders() -> None:
    levels: dict[str, int] = {}
    for used in (600 * MIB, 4 * MIB, 30 * MIB):
        levels = learn_idle(levels, view(device(0, used=used)))
    assert levels == {"GPU-0": 4 * MIB}
    assert idle_limit(device(0), levels)[0] == 68 * MIB


def test_use_beside_a_holder_teaches_no_idle_level() -> None:
    held = replace(device(0, used=2 * MIB), processes=(DeviceProcess(7, MIB),))
    assert learn_idle({}, view(held)) == {}


def test_memory_of_an_unseen_holder_never_becomes_the_idle_level() -> None:
    ghost = device(0, used=93_699 * MIB)
    assert learn_idle({}, view(ghost)) == {}
    assert idle_limit(ghost, {"GPU-0": 93_699 * MIB})[0] == int((1 << 37) * 0.015)


def test_without_a_learnt_level_one_gib_or_a_share_of_the_memory_is_idle() -> None:
    assert idle_limit(device(0, total=24 * GIB), {})[0] == GIB
    assert idle_limit(device(0, total=200 * GIB), {})[0] == 3 * GIB


def test_a_leftover_is_described_in_one_line_with_its_proof() -> None:
    held = replace(device(4, used=93_703 * MIB), processes=(DeviceProcess(41822, 93_699 * MIB),))
    host = HostFacts({41822: process_facts(41822, "sglang::scheduler_TP4")})
    (holder,) = view(held, host).holders
    assert describe(holder) == (
        "GPU 4: 93,699 MiB held by 41822 sglang::scheduler_TP4, leftover:"
        " SGLang of your user, parent gone (now 1)"
    )


def test_a_supervised_holder_is_not_signalled_behind_its_supervisors_back() -> None:
    held = replace(device(0), processes=(DeviceProcess(300, MIB),))
    unit = Owner("systemd sglang.service", True, "systemctl stop sglang.service")
    host = HostFacts({300: process_facts(300, "sglang::scheduler_TP0")}, owners={300: unit})
    (holder,) = view(held, host).holders
    assert holder.kind is HolderKind.LEFTOVER
    assert "systemctl stop sglang.service" in (signal_refusal(holder) or "")
    assert confirmation_text(holder) is not None


def test_what_may_be_started_again_is_asked_about_with_the_starter_named() -> None:
    held = replace(device(0), processes=(DeviceProcess(300, MIB),))
    host = HostFacts(
        {300: process_facts(300, "python train.py")},
        owners={300: Owner("started by 9 bash up.sh", None)},
    )
    (holder,) = view(held, host).holders
    assert signal_refusal(holder) is None
    assert "started by 9 bash up.sh" in (confirmation_text(holder) or "")


def test_those_who_are_not_ours_stand_apart_from_what_a_stop_waits_for() -> None:
    rows = (DeviceProcess(300, MIB), DeviceProcess(301, MIB), DeviceProcess(999, MIB))
    host = HostFacts(
        {
            300: process_facts(300, "python train.py"),
            301: process_facts(301, "sglang::scheduler_TP0"),
        }
    )
    standing = standing_holders(view(replace(device(0), processes=rows), host))
    assert {identity.pid for identity in standing} == {300}
