"""A kvctld process over a fake controller: `python kvctld.py STATE_DIR`, detached like the real.

For tests that need another process (kill -9, SIGHUP, the CLI) but no host behind it.
"""

import asyncio
import sys
from dataclasses import asdict, replace
from pathlib import Path

from kvctl.core.controller.commands import Command, Outcome, PlanPresets, StartServer
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.process import serve_here
from kvctl.core.daemon.server import DaemonOptions
from kvctl.core.domain.errors import KvctlError
from tests.fakes.controller import FakeController
from tests.fakes.plans import MEASURED, SCENE, planned
from tests.tui.mission import STEADY


class Scripted(FakeController):
    """Emits an event a command, refuses a preset called "refused", never ends "forever"."""

    async def submit(self, command: Command) -> Outcome:
        await self.emit("told", type(command).__name__)
        if isinstance(command, StartServer) and command.preset == "refused":
            return Outcome(4, "rule 1 refuses it: no fp8", ("kv-cache-dtype = fp8_e4m3",))
        if isinstance(command, StartServer) and command.preset == "crash":
            raise ZeroDivisionError("by request")
        if isinstance(command, StartServer) and command.preset == "forever":
            await asyncio.Event().wait()
        if isinstance(command, PlanPresets):
            return _plan(command)
        return Outcome(0, "done", ("what was seen",))


def _plan(command: PlanPresets) -> Outcome:
    made = planned(replace(SCENE, launches=(MEASURED,)))
    if unknown := [name for name in command.presets if name not in made]:
        return Outcome(2, f"there is no preset {unknown[0]}")
    chosen = [asdict(made[name]) for name in command.presets or made]
    return Outcome(0, "planned", data={"presets": chosen})


def main() -> None:
    state = Path(sys.argv[1])
    paths = DaemonPaths(state, state, state / "config")
    serve_here(paths, lambda: Scripted(STEADY), DaemonOptions(idle_exit_s=60.0), is_detached=True)


if __name__ == "__main__":
    try:
        main()
    except KvctlError as error:
        print(f"kvctl: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
