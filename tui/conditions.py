"""When an action is possible, what it is called at the moment, and the command it makes.

A condition returns "" when the action is possible, else why not, in a few words.
"""

from kvctl.core.controller.commands import (
    Command,
    NudgeThrottle,
    PauseRun,
    ResumeRun,
    Throttle,
)
from kvctl.core.domain.gpus.holding import every_holder
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.present.text import literal
from kvctl.tui.present.view import View
from kvctl.tui.present.words import is_changing


def always(snapshot: Snapshot, view: View) -> str:
    """Want nothing."""
    return ""


def needs_run(snapshot: Snapshot, view: View) -> str:
    """Want a run that is not finished."""
    if snapshot.run is None:
        return "no run is open; s starts one"
    done = snapshot.run.state is RunState.FINISHED
    return f"run {snapshot.run.name} is finished" if done else ""


def needs_no_run(snapshot: Snapshot, view: View) -> str:
    """Want no run that is still open."""
    run = snapshot.run
    if run is None or run.state in (RunState.FINISHED, RunState.FAILED):
        return ""
    return f"run {run.name} is open; one run at a time"


def needs_server(snapshot: Snapshot, view: View) -> str:
    """Want a server that is not changing."""
    server = snapshot.server
    if server is None:
        return "no server runs here; S starts one"
    return "a start or restart is in progress; X cancels it" if is_changing(server) else ""


def restart_label(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the word of `R`, none where nothing runs."""
    return ("restart",) if has_live_server(snapshot) else ()


def needs_stillness(snapshot: Snapshot, view: View) -> str:
    """Want no start, stop or restart in progress."""
    changing = is_changing(snapshot.server)
    return "a start or restart is in progress; X cancels it" if changing else ""


def needs_change(snapshot: Snapshot, view: View) -> str:
    """Want a start, stop or restart in progress."""
    return "" if is_changing(snapshot.server) else "no start or restart is in progress"


def needs_failure(snapshot: Snapshot, view: View) -> str:
    """Want a server that failed, and a preset that worked before."""
    server = snapshot.server
    if server is None or server.state is not ServerState.FAILED:
        return "no server has failed"
    if snapshot.busy_command:
        return f"{snapshot.busy_command} still cleans up; in a moment"
    return "" if snapshot.last_good_preset else "no preset has worked here before; S starts one"


def needs_holder(snapshot: Snapshot, view: View) -> str:
    """Want a process that holds GPU memory."""
    held = every_holder(snapshot.gpus)
    return "" if held else "no process holds GPU memory"


def needs_gpu_list(snapshot: Snapshot, view: View) -> str:
    """Want the GPU pane on the whole screen, with a process in it."""
    return needs_holder(snapshot, view) or ("" if view.zoom == 2 else "zoom the GPUs first (2)")


def needs_preset(snapshot: Snapshot, view: View) -> str:
    """Want the preset pane on the whole screen, with a preset in it."""
    if not snapshot.presets:
        return "there is no preset; kvctl presets list says where they are looked for"
    return "" if view.zoom == 5 else "zoom the presets first (5)"


def needs_log(snapshot: Snapshot, view: View) -> str:
    """Want a server with a known log file."""
    server = snapshot.server
    if server is None or server.log_path is None:
        return "no log file is known for this server"
    return ""


def needs_notes(snapshot: Snapshot, view: View) -> str:
    """Want more than one verdict."""
    return "" if len(snapshot.verdicts) > 1 else "there is no other note"


def pause_or_resume(snapshot: Snapshot) -> Command:
    """Return the command of `p`."""
    is_sending = snapshot.run is not None and snapshot.run.state is RunState.RUNNING
    return PauseRun() if is_sending else ResumeRun()


def switch_auto(snapshot: Snapshot) -> Command:
    """Return the command of `a`: MANUAL keeps the number of the moment."""
    run = snapshot.run
    return Throttle(run.target if run is not None and run.is_auto else None)


def step_of(run: Run | None) -> int:
    """Return how much + and - change: 1 below 16 slots, 8 above 128, else 4."""
    target = run.target if run else 0
    if target < 16:
        return 1
    return 8 if target > 128 else 4


def more(snapshot: Snapshot) -> Command:
    """Return the command of `+`."""
    return NudgeThrottle(step_of(snapshot.run))


def fewer(snapshot: Snapshot) -> Command:
    """Return the command of `-`."""
    return NudgeThrottle(-step_of(snapshot.run))


def pause_label(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what `p` does now."""
    if is_changing(snapshot.server):
        return ("hold after ready",) if is_sending(snapshot) else ("send after ready",)
    return ("pause",) if is_sending(snapshot) else ("send again", "send")


def is_sending(snapshot: Snapshot) -> bool:
    """Return whether the run sends, or will again by itself."""
    run = snapshot.run
    return run is not None and run.state not in (RunState.PAUSED, RunState.FAILED)


def auto_label(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what `a` changes to."""
    return ("manual",) if snapshot.run is not None and snapshot.run.is_auto else ("AUTO",)


def has_live_server(snapshot: Snapshot) -> bool:
    """Return whether there is a server process to stop."""
    server = snapshot.server
    gone = (ServerState.STOPPED, ServerState.FAILED)
    return server is not None and server.state not in gone


def stop_label(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what `S` does now."""
    return ("stop",) if has_live_server(snapshot) else ("start",)


def last_good_label(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what `b` does after a failure."""
    return (f"back to {literal(snapshot.last_good_preset or 'a preset')}", "back")


def why_label(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what `w` opens now."""
    return ("stages",) if is_changing(snapshot.server) else ("why",)
