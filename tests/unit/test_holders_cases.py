"""O6 to O9: what kvctl makes of the GPU situations that operators reported."""

from tests.nvml.cases import load_case

from kvctl.core.domain.gpus.devices import GpuView, Holder, HolderKind
from kvctl.core.domain.gpus.holding import (
    confirmation_text,
    describe,
    leftover_bytes,
    signal_refusal,
    unexplained_bytes,
    usable_text,
)

GIB = 1 << 30


def held(view: GpuView, pid: int) -> Holder:
    (holder,) = (h for h in view.holders if h.pid == pid)
    return holder


def test_o06_a_pid_that_is_not_visible_keeps_its_memory_and_cannot_be_signalled() -> None:
    holder = held(load_case("o06").view(), 2505781)
    assert holder.kind is HolderKind.INVISIBLE
    assert holder.memory_bytes == 73 * GIB
    assert "not visible here (host pid?)" in holder.evidence
    assert signal_refusal(holder) is not None


def test_o06_in_a_container_a_pid_that_matches_by_chance_is_not_taken_for_the_holder() -> None:
    holder = held(load_case("o06").view(), 57)
    assert holder.kind is HolderKind.INVISIBLE
    assert not holder.is_certain
    assert holder.start_ticks is None
    refusal = signal_refusal(holder)
    assert refusal is not None and "vim notes.txt" in refusal and "host pid" in refusal


def test_o07_a_size_that_the_driver_does_not_know_is_none_and_no_sum_is_made_of_it() -> None:
    view = load_case("o07").view()
    assert held(view, 79).memory_bytes is None
    assert unexplained_bytes(view.devices[1], view.holders) is None
    assert "memory held by 79 python" in describe(held(view, 79)).replace("perhaps ", "")


def test_o07_another_users_program_is_foreign_and_named_in_the_confirmation() -> None:
    holder = held(load_case("o07").view(), 4100)
    assert holder.kind is HolderKind.FOREIGN
    text = confirmation_text(holder)
    assert text is not None and "gnome-shell" in text and "user gdm" in text


def test_o08_a_lost_gpu_leaves_the_others_and_the_count_says_so() -> None:
    view = load_case("o08").view()
    assert [d.problem for d in view.devices] == [None, "GpuIsLost", "Unknown Error (999)", None]
    assert view.devices[1].bus_id == "00000000:AE:00.0"
    assert usable_text(view) == "2 of 4 GPUs usable"


def test_o08_a_scheduler_without_a_parent_is_a_leftover_with_its_rank() -> None:
    holder = held(load_case("o08").view(), 900)
    assert holder.kind is HolderKind.LEFTOVER
    assert holder.rank == "TP0"
    assert "parent gone (now 1)" in holder.evidence


def test_o09_the_orphan_of_a_stopped_server_is_ours_and_may_be_ended() -> None:
    holder = held(load_case("o09").view(), 2001)
    assert holder.kind is HolderKind.LEFTOVER
    assert holder.server == "main"
    assert signal_refusal(holder) is None
    assert confirmation_text(holder) is None


def test_o09_an_orphan_in_uninterruptible_sleep_says_that_kill_cannot_work() -> None:
    holder = held(load_case("o09").view(), 2002)
    assert holder.kind is HolderKind.EXITING
    assert "KILL cannot work until the kernel lets go" in holder.evidence
    assert holder.server == "main"


def test_o09_a_reused_pid_is_not_ours_whatever_the_record_says() -> None:
    holder = held(load_case("o09").view(), 2003)
    assert holder.kind is HolderKind.FOREIGN
    assert holder.server is None
    assert "another process now" in holder.evidence
    assert confirmation_text(holder) is not None


def test_o09_another_users_scheduler_is_shown_and_never_counted_as_our_leftover() -> None:
    view = load_case("o09").view()
    holder = held(view, 7777)
    assert holder.kind is HolderKind.FOREIGN
    assert holder.user == "alice" and not holder.is_mine
    assert "SGLang of user alice" in holder.evidence
    assert {h.pid for h in view.leftovers} == {2001}
    assert "not permitted" in (signal_refusal(holder) or "")


def test_o09_leftovers_hold_two_hundred_gib_on_two_gpus() -> None:
    assert leftover_bytes(load_case("o09").view()) == 200 * GIB
