"""What a plan knows of presets that start SGLang by a command: the version of its last launch."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvctl.core.clock import ManualClock
from kvctl.core.domain.gpus.devices import GpuView
from kvctl.core.domain.launches.launch import LaunchRecord
from kvctl.core.probes.processes import HostProcesses
from kvctl.core.servers.planning import PlanReader, PlanSurroundings
from kvctl.core.servers.presets.store import PresetStore

PRESET = """\
[launch]
command = ["docker", "run", "{image}", "python", "-m", "sglang.launch_server", "{{sglang_args}}"]
model-path = "/models/kimi"
[flags]
mem-fraction-static = {fraction}
"""


def version_of(folder: Path, name: str, *launches: LaunchRecord) -> str | None:
    reader = PlanReader(PresetStore([folder], {}), HostProcesses(), ManualClock())
    around = PlanSurroundings(GpuView(), launches, ())
    (candidate,) = reader.candidates(around, [name])[0]
    return candidate.flags.version


@pytest.fixture
def launched(tmp_path: Path) -> LaunchRecord:
    """One launch of preset "seen", by image "sglang:a"; "same" and "other" were never launched."""
    for name, image, fraction in (
        ("seen", "sglang:a", 0.88),
        ("same", "sglang:a", 0.85),
        ("other", "sglang:b", 0.88),
    ):
        text = PRESET.format(image=image, fraction=fraction)
        (tmp_path / f"{name}.toml").write_text(text, "utf-8")
    store = PresetStore([tmp_path], {})
    preset = next(listed.preset for listed in store.listed() if listed.name == "seen")
    assert preset is not None
    argv = store.shown_plan(preset).shown_argv
    return LaunchRecord("launch-1", "seen", 0.0, argv, version="0.5.10")


def test_a_preset_never_launched_has_the_version_of_the_same_command(
    launched: LaunchRecord, tmp_path: Path
) -> None:
    assert version_of(tmp_path, "seen", launched) == "0.5.10"
    assert version_of(tmp_path, "same", launched) == "0.5.10"
    assert version_of(tmp_path, "other", launched) is None


def test_a_launch_of_the_preset_itself_counts_more_than_a_later_one_of_its_command(
    launched: LaunchRecord, tmp_path: Path
) -> None:
    later = replace(launched, id="launch-2", preset="same", version="0.5.12")
    assert version_of(tmp_path, "seen", launched, later) == "0.5.10"
    assert version_of(tmp_path, "same", launched, later) == "0.5.12"
    unknown = replace(launched, version=None)
    assert version_of(tmp_path, "same", unknown) is None
