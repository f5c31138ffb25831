"""The actions that ask first: each opens its dialog and submits what was agreed to."""

from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.core.controller.commands import (
    MOST_SLOTS,
    AdoptServer,
    CancelStart,
    PauseRun,
    StartRun,
    StartServer,
    StopServer,
    Throttle,
    WaitHow,
)
from kvctl.core.domain.gpus.devices import HolderKind
from kvctl.core.domain.units import duration, kilo_tokens
from kvctl.tui import runfiles
from kvctl.tui.conditions import has_live_server
from kvctl.tui.present import holders, restart
from kvctl.tui.present.box import Option
from kvctl.tui.present.presets import in_order
from kvctl.tui.screens.dialogs import ChoiceDialog, EntryDialog, KillDialog, Question, Request
from kvctl.tui.screens.restart import RestartDialog, StagesDialog

if TYPE_CHECKING:
    from kvctl.tui.app import PanelApp


class Questions:
    """One method an action that asks; the registry's name is the method's."""

    def __init__(self, app: "PanelApp") -> None:
        """Ask on this panel."""
        self.app = app

    def restart(self, key: str) -> None:
        """Open the restart dialog, for the preset under the cursor where there is one."""
        self._preflight(is_start=not has_live_server(self.app.snapshot))

    def stop(self, key: str) -> None:
        """Open the stop dialog, or the start dialog where no server runs."""
        if has_live_server(self.app.snapshot):
            self._ask_stop()
        else:
            self._preflight(is_start=True, preset=self._card_choice(key))

    def last_good(self, key: str) -> None:
        """Start the last preset that worked: nothing serves, and its checks come first."""
        preset = self.app.snapshot.last_good_preset
        server = self.app.snapshot.server
        if preset is None:
            return
        title = f"Start ── back to {preset}"
        dialog = StagesDialog(title, self.app.toast)
        command = StartServer(preset, server.name if server else None)
        self.app.submit(command, title, dialog.ended)
        self.app.push_screen(dialog)

    def _preflight(self, *, is_start: bool, preset: str | None = None) -> None:
        snapshot, view = self.app.snapshot, self.app.view
        if preset is None and view.zoom == 5 and snapshot.presets:
            preset = in_order(snapshot)[view.cursor % len(snapshot.presets)].name
        self.app.push_screen(RestartDialog(snapshot, is_start=is_start, preset=preset))

    def _card_choice(self, key: str) -> str | None:
        """Return the preset that the failure card's r means."""
        server = self.app.snapshot.server
        return server.preset if server is not None and key == "r" else None

    def _ask_stop(self) -> None:
        snapshot = self.app.snapshot
        server = snapshot.server
        if server is None:
            return
        foreign = restart.foreign_count(snapshot)
        owner = f" Its owner is {server.owner}: only it may stop it." if server.owner else ""
        cut = f" {foreign:,} requests are not this run's; yes cuts them too." if foreign else ""

        def yes(way: str) -> None:
            command = StopServer(server.name, WaitHow(way or "harvest"), foreign > 0)
            self.app.submit(command, "stop")

        intro = f"Stops {server.name} (pid {server.pid or '–'}) and proves its GPUs clean."
        options = restart.way_options(snapshot, None) if snapshot.run else ()
        title = f"Stop ── {server.name} ── nothing has been touched yet"
        question = Question(title, intro + owner + cut, options, "Stop", yes)
        self.app.push_screen(ChoiceDialog(question))

    def cancel(self, key: str) -> None:
        """Ask before the start in progress is stopped."""
        server = self.app.snapshot.server
        name = server.name if server else None

        def yes(way: str) -> None:
            self.app.submit(CancelStart(name), "cancel start")

        intro = "Stops the start in progress and proves the GPUs clean; the run stays held."
        self.app.push_screen(ChoiceDialog(Question("Cancel the start", intro, (), "Stop it", yes)))

    def kill(self, key: str) -> None:
        """Open the kill dialog at the selected holder, those marked in the pane marked there."""
        row = holders.selected(self.app.snapshot.gpus, self.app.view)
        pid = row.holder.pid if row is not None and row.holder is not None else None
        self.app.push_screen(KillDialog(pid, self.app.view.marked))

    def pause_further(self, key: str) -> None:
        """Ask what happens to the answers in flight."""
        run = self.app.snapshot.run
        if run is None:
            return
        made = run.in_flight_tokens
        tokens = f" (~{kilo_tokens(made)} tokens)" if made else ""
        wait = f"~{duration(run.mean_answer_s)}" if run.mean_answer_s else ""
        frozen = "the engine stands still, answers keep their tokens and GPU memory; others' too"
        options = (
            Option("drain", f"sends nothing new; {run.in_flight} answers end normally", wait),
            Option("freeze", frozen, "at once"),
            Option("harvest", f"ends {run.in_flight} requests, keeps their answers so far{tokens} "
                   "and continues them later", "seconds"),
        )  # fmt: skip

        def yes(way: str) -> None:
            self.app.submit(PauseRun(WaitHow(way)), f"pause: {way}")

        intro = f"{run.in_flight} answers are in flight. p sends again after any of these."
        question = Question(f"Pause further ── {run.name}", intro, options, "Pause", yes)
        self.app.push_screen(ChoiceDialog(question))

    def slots(self, key: str) -> None:
        """Ask for the number of slots."""
        run = self.app.snapshot.run
        if run is None:
            return
        auto = f"AUTO would set {run.auto_target}. " if run.auto_target is not None else ""
        fit = f"~{run.fit_at_mean:.0f} decode at once. " if run.fit_at_mean else ""
        intro = f"Slots are {run.target} now, {run.in_flight} in flight. {auto}{fit}"

        def take(text: str) -> None:
            number = None if text.strip().lower() == "auto" else int(text)
            self.app.submit(Throttle(number), "slots")

        request = Request(f"Slots ── {run.name}", intro + "A number, or auto.", "set", judge_slots,
                          take)  # fmt: skip
        self.app.push_screen(EntryDialog(request))

    def adopt(self, key: str) -> None:
        """Ask which server to watch."""
        rows = self.app.snapshot.gpus.holders
        others = {h.pid: h for h in rows if h.kind is HolderKind.OTHER_SGLANG}

        def take(text: str) -> None:
            self.app.submit(AdoptServer(text.strip()), "adopt")

        intro = "URL or pid of a server that runs already. It is watched; nothing is done to it."
        dialog = EntryDialog(Request("Adopt a server", intro, "adopt", judge_target, take))
        dialog.suggest([Option(str(pid), h.title) for pid, h in others.items()])
        self.app.push_screen(dialog)

    def start_run(self, key: str) -> None:
        """Ask for a run file; those of this folder are offered."""
        folder = Path.cwd()

        def take(text: str) -> None:
            self.app.submit(StartRun(str(folder / Path(text.strip()).expanduser())), "start run")

        intro = "Run file (TOML). A run that was begun continues from its journal."
        dialog = EntryDialog(
            Request("Start a run", intro, "start", _judge_run_file, take, _describe_run_file)
        )
        self.app.push_screen(dialog)
        self.app.in_thread(lambda: runfiles.found_in(folder), dialog.suggest)


def judge_slots(text: str) -> str:
    """Return why a text is no number of slots, "" if it is one."""
    word = text.strip().lower()
    if word == "auto":
        return ""
    if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= MOST_SLOTS:
        return f"a number from 1 to {MOST_SLOTS:,}, or auto"
    return ""


def judge_target(text: str) -> str:
    """Return why a text is neither URL nor pid, "" if it is one."""
    word = text.strip()
    if word.isdigit() or word.startswith(("http://", "https://")):
        return ""
    return "a URL such as http://127.0.0.1:30000, or a pid"


def _judge_run_file(text: str) -> str:
    if not text.strip():
        return "type a path, or choose with the arrows"
    return runfiles.describe(Path(text.strip()).expanduser()).problem


def _describe_run_file(text: str) -> str:
    if not text.strip().endswith(".toml"):
        return ""
    found = runfiles.describe(Path(text.strip()).expanduser())
    return found.problem or found.summary
