"""Presets taken over and checked through kvctld, and rules that hold from the moment they exist."""

from dataclasses import replace

from tests.fakes.rig import Rig, preset_text

from kvctl.core.controller.commands import CheckPreset, OwnPreset, PlanPresets, ValidatePreset
from kvctl.core.controller.controller import Controller
from kvctl.core.servers.presets.store import PresetStore


def shared(rig: Rig) -> Controller:
    """A kvctld whose presets all lie in a shared folder, the operator's own being empty."""
    own = rig.folder / "own"
    store = PresetStore([own, rig.folder / "presets"], rig.environment)
    return Controller(replace(rig.host(), presets=store))


async def test_a_preset_is_copied_once_into_the_operators_folder(rig: Rig) -> None:
    controller = shared(rig)
    first = await controller.submit(OwnPreset("small"))
    path = rig.folder / "own" / "small.toml"
    assert first.is_done and first.data == {"path": str(path)}
    assert first.message.startswith("copied ")
    assert path.read_text() == (rig.folder / "presets" / "small.toml").read_text()
    path.write_text(path.read_text() + "# mine\n")
    again = await controller.submit(OwnPreset("small"))
    assert again.is_done and path.read_text().endswith("# mine\n")


async def test_every_problem_of_an_edited_preset_comes_back_with_its_line(rig: Rig) -> None:
    rig.write_preset("bad", '[launch]\npyton = "/py"\nport = 0\n[flags]\nx = []\n')
    outcome = await rig.now.submit(ValidatePreset("bad"))
    assert outcome.exit_status == 2 and outcome.message == "bad: 3 problems"
    lines = [error.partition(".toml:")[2].partition(":")[0] for error in outcome.data["errors"]]
    assert lines == ["2", "3", "5"]


async def test_a_rule_is_told_when_a_preset_is_checked_after_an_edit(rig: Rig) -> None:
    outcome = await rig.now.submit(ValidatePreset("fp8"))
    assert any("fp8 KV degrades" in error for error in outcome.data["errors"])


async def test_an_unknown_preset_names_those_there_are(rig: Rig) -> None:
    outcome = await rig.now.submit(OwnPreset("nobody"))
    assert outcome.exit_status == 2 and "there are: " in outcome.message


async def test_a_rule_written_while_kvctld_runs_holds_at_the_next_check(rig: Rig) -> None:
    path = rig.folder / "config.toml"
    path.write_text("")
    controller = Controller(replace(rig.host(), config_path=path))
    assert (await rig.during(controller.submit(CheckPreset("small")))).is_done
    path.write_text('[[rule]]\nflag = "mem-fraction-static"\ndeny = ["*"]\nreason = "measured"\n')
    refused = await rig.during(controller.submit(CheckPreset("small")))
    assert refused.exit_status == 4
    assert any("measured" in line for line in refused.observed)
    path.write_text("[[rule\n")
    broken = await rig.during(controller.submit(CheckPreset("small")))
    assert broken.exit_status == 2 and "not TOML" in broken.message


async def test_a_rule_written_while_kvctld_runs_is_in_the_next_plan(rig: Rig) -> None:
    path = rig.folder / "config.toml"
    path.write_text("")
    controller = Controller(replace(rig.host(), config_path=path))
    before = await rig.during(controller.submit(PlanPresets(("small",))))
    assert before.data["presets"][0]["refused"] is None
    path.write_text('[[rule]]\nflag = "mem-fraction-static"\ndeny = ["*"]\nreason = "measured"\n')
    after = await rig.during(controller.submit(PlanPresets(("small",))))
    assert after.data["presets"][0]["refused"] == "rule on mem-fraction-static: measured"
    path.write_text("[[rule\n")
    broken = await rig.during(controller.submit(PlanPresets(("small",))))
    assert broken.exit_status == 2 and "not TOML" in broken.message


async def test_a_plan_refuses_a_value_that_came_from_a_variable(rig: Rig) -> None:
    rig.environment["KV"] = "fp8_e4m3"
    rig.write_preset("given", preset_text('[flags]\nkv-cache-dtype = "${KV}"\n'))
    outcome = await rig.during(Controller(rig.host()).submit(PlanPresets(("given",))))
    assert outcome.data["presets"][0]["refused"].startswith("rule on kv-cache-dtype")
