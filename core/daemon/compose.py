"""The composition root of kvctld: the real host, or the simulated one, put into a Controller."""

import socket
from collections.abc import Mapping
from pathlib import Path

from kvctl import __version__
from kvctl.core.clock import Clock, RealClock, ScaledClock
from kvctl.core.controller.controller import Controller
from kvctl.core.controller.host import Host
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.ports import GpuSource, Processes
from kvctl.core.probes.log_tail import FileLogTail
from kvctl.core.probes.nvml import NvmlSource
from kvctl.core.probes.processes import HostProcesses, read_me
from kvctl.core.probes.sglang_http import SglangEngine
from kvctl.core.runs.sending.transport import AiohttpGenerator
from kvctl.core.servers.config import read_config
from kvctl.core.servers.presets.store import PresetStore, preset_folders
from kvctl.core.servers.processes.launch import Launcher
from kvctl.core.sim.gpus import SimulatedGpus
from kvctl.core.sim.processes import SimulatedProcesses
from kvctl.core.sim.simclock import clock_from_environment

PUBLISH_REAL_S = 0.25


def build_controller(
    paths: DaemonPaths, environment: Mapping[str, str], simulated: Path | None = None
) -> Controller:
    """Return the controller of this host, or of the simulated one in a folder.

    Raises:
        ConfigError: config.toml cannot be used.
        KvctlError: The remembered state cannot be read.
    """
    env = dict(environment)
    config = read_config(paths.config / "config.toml")
    clock: Clock = RealClock() if simulated is None else clock_from_environment(env)
    gpus: GpuSource = NvmlSource() if simulated is None else SimulatedGpus(simulated)
    host = Host(
        name=socket.gethostname(),
        version=__version__,
        clock=clock,
        me=read_me(),
        gpus=gpus,
        processes=_processes(simulated),
        launcher=Launcher(clock, env),
        presets=PresetStore(preset_folders(paths.config, config.preset_folders), env),
        config=config,
        state_folder=paths.state,
        open_engine=lambda url, key: SglangEngine(url, clock, api_key=key),
        open_generator=lambda url, key: AiohttpGenerator(url, api_key=key),
        open_tail=FileLogTail,
        finds_servers=simulated is None and env.get("KVCTL_FIND", "1") != "0",
        publish_every_s=PUBLISH_REAL_S * _pace(clock),
        pace=_pace(clock),
        config_path=paths.config / "config.toml",
    )
    return Controller(host)


def _pace(clock: Clock) -> float:
    return clock.speed if isinstance(clock, ScaledClock) else 1.0


def _processes(simulated: Path | None) -> Processes:
    real = HostProcesses()
    return real if simulated is None else SimulatedProcesses(real, str(simulated))
