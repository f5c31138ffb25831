"""What an operator, a script or a test can ask of the controller, as data.

Each command is a frozen dataclass; `COMMANDS` gives its wire name. Whatever changes state is
one of these, given to `Controller.submit`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvctl.core.domain.gpus.devices import ProcessIdentity


class WaitHow(StrEnum):
    """What happens to requests in flight at a pause, stop or restart."""

    DRAIN = "drain"
    """Wait until they have ended."""
    FREEZE = "freeze"
    """Pause the engine; answers keep their tokens (pause only)."""
    HARVEST = "harvest"
    """Abort them and keep the partial answers, to be continued."""
    ABANDON = "abandon"
    """Abort them; their prompts start again."""


@dataclass(frozen=True, slots=True)
class CheckPreset:
    """Run every preflight check of a preset; touches nothing."""

    preset: str
    server: str | None = None


@dataclass(frozen=True, slots=True)
class PlanPresets:
    """Say what presets would bring, side by side; touches nothing."""

    presets: tuple[str, ...] = ()
    """Empty: all."""
    run: str | None = None
    """Run file (absolute path) or output folder whose lengths count; None: the open run's."""
    lengths: tuple[float, ...] = ()
    """Mean lengths of answers in tokens, in place of a run's."""


@dataclass(frozen=True, slots=True)
class OwnPreset:
    """Copy a preset into the operator's own folder, where it is not there yet, to be edited."""

    preset: str


@dataclass(frozen=True, slots=True)
class ValidatePreset:
    """Find every problem of a preset's text, rules and flags; touches nothing."""

    preset: str


@dataclass(frozen=True, slots=True)
class StartServer:
    """Launch a server from a preset and wait until it serves."""

    preset: str
    server: str | None = None


@dataclass(frozen=True, slots=True)
class StopServer:
    """Stop a server and prove its GPUs clean."""

    server: str | None = None
    how: WaitHow = WaitHow.HARVEST
    cut_foreign: bool = False
    """The operator agreed to cut requests that are not the run's own."""


@dataclass(frozen=True, slots=True)
class RestartServer:
    """Stop, prove clean, start again (with another preset), resume the run."""

    preset: str | None = None
    """None: the preset that runs now."""
    server: str | None = None
    how: WaitHow = WaitHow.HARVEST
    cut_foreign: bool = False


@dataclass(frozen=True, slots=True)
class CancelStart:
    """Stop the start or restart in progress."""

    server: str | None = None


@dataclass(frozen=True, slots=True)
class AdoptServer:
    """Watch a server that already runs."""

    target: str
    """URL or pid."""
    server: str | None = None


@dataclass(frozen=True, slots=True)
class ForgetServer:
    """Stop watching a server; nothing is done to it."""

    server: str | None = None


@dataclass(frozen=True, slots=True)
class CapServer:
    """Cap the requests that a serving server runs at once, whoever sent them."""

    running: int | None
    """None: put the server's own cap back."""
    server: str | None = None


@dataclass(frozen=True, slots=True)
class KillProcesses:
    """End processes, each identified by (pid, start time) at the moment of sending."""

    targets: tuple[ProcessIdentity, ...]
    signal: str = "TERM"
    """TERM, KILL, INT or QUIT."""
    wait_s: float = 15.0
    escalate: bool = False
    """Send KILL to what is left after `wait_s`."""
    confirmed: bool = False
    """The operator has seen name, owner and container of what is not ours."""
    group: bool = False
    """Also everything else of the launches they belong to."""


@dataclass(frozen=True, slots=True)
class ClearGpus:
    """End leftovers (of one GPU or of all) and prove the GPUs clean."""

    gpu: int | None = None
    """Index; None means every leftover on the host, those included that hold no GPU."""
    server: str | None = None
    """Only what this server left behind; None: whatever was left behind."""
    every_holder: bool = False
    """With `gpu`: every holder of that GPU, not only leftovers."""
    wait_s: float = 15.0
    signal: str | None = None
    """None: TERM, then KILL after `wait_s`."""
    confirmed: bool = False
    named: tuple[ProcessIdentity, ...] | None = None
    """Whom the operator saw when agreeing: anybody else needs a yes. None: no names were shown."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start (or resume from its journal) the run of a run file."""

    path: str
    force: bool = False
    """Resume although the manifest differs (other model, other sampling)."""
    accept_damage: bool = False
    """Leave lines of the journal that cannot be read where they are; their rows are made again."""


@dataclass(frozen=True, slots=True)
class PauseRun:
    """Stop sending; how to treat what is in flight."""

    how: WaitHow = WaitHow.DRAIN


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Send again."""


@dataclass(frozen=True, slots=True)
class CloseRun:
    """End the run's driver; its files stay, and it can be started again."""


MOST_SLOTS = 10_000


@dataclass(frozen=True, slots=True)
class Throttle:
    """Set the slots: a number (MANUAL) from 1 to `MOST_SLOTS`, or None (AUTO)."""

    target: int | None


@dataclass(frozen=True, slots=True)
class NudgeThrottle:
    """Add to the target; becomes MANUAL."""

    by: int


@dataclass(frozen=True, slots=True)
class SetWeights:
    """Change partition weights while the run goes on."""

    weights: dict[str, float]


@dataclass(frozen=True, slots=True)
class ChangeRunServers:
    """Let the open run send to more servers, or to some no longer."""

    add: tuple[str, ...] = ()
    """URLs, or names of watched servers."""
    remove: tuple[str, ...] = ()
    how: WaitHow = WaitHow.HARVEST
    """What happens to the answers in flight at the removed ones."""


@dataclass(frozen=True, slots=True)
class RetryFailed:
    """Queue the failed rows again."""


@dataclass(frozen=True, slots=True)
class RefreshNow:
    """Read every source now."""


@dataclass(frozen=True, slots=True)
class StopDaemon:
    """Leave; servers go on, the run is taken up by the next kvctld."""


Command = (
    CheckPreset
    | PlanPresets
    | OwnPreset
    | ValidatePreset
    | StartServer
    | StopServer
    | RestartServer
    | CancelStart
    | AdoptServer
    | ForgetServer
    | CapServer
    | KillProcesses
    | ClearGpus
    | StartRun
    | PauseRun
    | ResumeRun
    | CloseRun
    | Throttle
    | NudgeThrottle
    | SetWeights
    | ChangeRunServers
    | RetryFailed
    | RefreshNow
    | StopDaemon
)

COMMANDS: dict[str, type[Command]] = {
    "check-preset": CheckPreset,
    "plan": PlanPresets,
    "preset-own": OwnPreset,
    "preset-validate": ValidatePreset,
    "server-start": StartServer,
    "server-stop": StopServer,
    "server-restart": RestartServer,
    "server-cancel": CancelStart,
    "server-adopt": AdoptServer,
    "server-forget": ForgetServer,
    "server-cap": CapServer,
    "kill": KillProcesses,
    "clear-gpus": ClearGpus,
    "run-start": StartRun,
    "run-pause": PauseRun,
    "run-resume": ResumeRun,
    "run-close": CloseRun,
    "throttle": Throttle,
    "nudge": NudgeThrottle,
    "weights": SetWeights,
    "run-servers": ChangeRunServers,
    "retry-failed": RetryFailed,
    "refresh": RefreshNow,
    "stop-daemon": StopDaemon,
}
"""Wire name of each command."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    exit_status: int
    """0 done, else as in `kvctl.core.domain.errors`."""
    message: str
    """One line: what was done or why not, and what next."""
    observed: tuple[str, ...] = ()
    """What proves it, one line each, in order."""
    data: dict[str, Any] = field(default_factory=dict)
    """Structured detail for --json and dialogs."""

    @property
    def is_done(self) -> bool:
        """Whether it succeeded."""
        return self.exit_status == 0
