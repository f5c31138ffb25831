"""Lays out the simulated host behind `kvctl demo`: folders, prompts, run file, presets, rule."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.clock import Clock, ScaledClock
from kvctl.core.sim.dataset import write_run
from kvctl.core.sim.folder import HostFolder
from kvctl.core.sim.hub import write_hub
from kvctl.core.sim.scenarios import MISSION, SCENARIOS, Flag, Scenario
from kvctl.core.sim.simclock import CLOCK_VARIABLE, FOLDER_VARIABLE, clock_to_environment

DEMO_PRESET = "demo"
CONFIG_TEXT = """\
[[rule]]
flag = "kv-cache-dtype"
deny = ["fp8*"]
reason = "fp8 KV degrades this model noticeably"
"""


@dataclass(frozen=True, slots=True)
class DemoHost:
    """Where the parts of a simulated host lie and what its processes need to know."""

    scenario: Scenario
    clock: ScaledClock
    """The time that kvctld and the simulated servers share."""
    host_dir: Path
    """The simulated devices (KVCTL_SIM_DIR)."""
    config_dir: Path
    """config.toml with the demo's rule, and presets/."""
    run_file: Path
    preset: str
    """The preset to start: the scenario's flags over a shipped simulated preset."""
    port: int
    environment: Mapping[str, str]
    """For kvctld and everything it starts."""


def prepare_demo(
    folder: Path, scenario: str, speed: float, clock: Clock, port: int = 30000
) -> DemoHost:
    """Write everything that a demo needs into a folder and return where it is.

    `clock` is the host's own clock: its present moment becomes the origin of the scaled one.

    Raises:
        KeyError: There is no scenario of that name.
    """
    plan = SCENARIOS[scenario]
    scaled = ScaledClock(speed, clock.monotonic(), clock.wall())
    host_dir = folder / "host"
    HostFolder(host_dir).write_scenario_name(plan.name)
    config_dir = folder / "config"
    _write_config(config_dir, plan)
    hub = folder / "hub"
    write_hub(hub)
    return DemoHost(
        scenario=plan,
        clock=scaled,
        host_dir=host_dir,
        config_dir=config_dir,
        run_file=write_run(folder / "run", plan, f"http://127.0.0.1:{port}"),
        preset=DEMO_PRESET,
        port=port,
        environment={
            FOLDER_VARIABLE: str(host_dir),
            CLOCK_VARIABLE: clock_to_environment(scaled),
            "KVCTL_SIM_PORT": str(port),
            "KVCTL_PYTHON": sys.executable,
            "HF_HUB_CACHE": str(hub),
        },
    )


def _write_config(folder: Path, scenario: Scenario) -> None:
    presets = folder / "presets"
    presets.mkdir(parents=True, exist_ok=True)
    # A scenario of an fp8 launch replays what was measured before the rule existed.
    is_fp8 = "kv-cache-dtype" in scenario.flags
    (folder / "config.toml").write_text("" if is_fp8 else CONFIG_TEXT, "utf-8")
    (presets / f"{DEMO_PRESET}.toml").write_text(preset_text(scenario), "utf-8")


def preset_text(scenario: Scenario) -> str:
    """Return a preset that adds the scenario's flags to a shipped simulated preset."""
    lines = [
        f'description = "simulated: {scenario.description}"',
        f'extends = "{scenario.preset}"',
        "",
        "[flags]",
    ]
    lines += [f"{name} = {_toml(value)}" for name, value in scenario.flags.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Flag) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def scenario_names() -> tuple[str, ...]:
    """Return the names that `kvctl demo --scenario` takes, the default first."""
    return (MISSION.name, *(name for name in SCENARIOS if name != MISSION.name))
