"""The words of the `kvctl` command: verbs, options, and one-line errors.

Standard library only, so that --help and --version cost nothing. Each verb names the function
that carries it out as "module:function"; the module is imported when the verb is used.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kvctl.core.cli.moments import since
from kvctl.core.domain.errors import UsageError

_HOW = ("drain", "harvest", "abandon")
_PAUSES = ("drain", "freeze", "harvest")
_FORMATS = ("ids", "text", "messages", "conversations", "preformatted")


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line that says what to do next."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        """Take no abbreviations: an option that is added later must not change a script."""
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of printing the whole usage."""
        raise UsageError(f"{message}; `{self.prog} --help` lists what there is")


def build_parser() -> OneLineParser:
    """Return the parser of every verb."""
    everywhere = _options_of_every_verb()
    parser = OneLineParser(
        prog="kvctl",
        description="Control panel for SGLang servers and the datasets generated through them. "
        "Without a verb: the panel.",
        parents=[everywhere],
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument("--ascii", action="store_true", help="draw the panel with ASCII only")
    parser.set_defaults(function="panel:open_panel")
    verbs = _Verbs(parser.add_subparsers(metavar="VERB", parser_class=OneLineParser), everywhere)
    for add in (_add_reading, _add_kill, _add_presets, _add_server, _add_run, _add_daemon):
        add(verbs)
    return parser


class _Verbs:
    """Adds verbs at one level of the command."""

    def __init__(
        self,
        level: "argparse._SubParsersAction[OneLineParser]",
        everywhere: OneLineParser,
    ) -> None:
        self._level = level
        self._everywhere = everywhere

    def add(self, name: str, function: str, text: str, *, json: bool = False) -> OneLineParser:
        """Add a verb carried out by `function` ("module:function")."""
        verb = self._level.add_parser(
            name, help=text, description=_sentence(text), parents=[self._everywhere]
        )
        verb.set_defaults(function=function)
        if json:
            verb.add_argument("--json", action="store_true", help="print one JSON document")
        return verb

    def group(self, name: str, text: str) -> "_Verbs":
        """Add a verb that has verbs of its own."""
        verb = self._level.add_parser(
            name, help=text, description=_sentence(text), parents=[self._everywhere]
        )
        level = verb.add_subparsers(
            metavar="VERB", required=True, dest=f"{name}_verb", parser_class=OneLineParser
        )
        return _Verbs(level, self._everywhere)


def _options_of_every_verb() -> OneLineParser:
    # SUPPRESS: given before the verb, a value must survive the verb's own defaults.
    options = OneLineParser(add_help=False, argument_default=argparse.SUPPRESS)
    options.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="lock, socket, state and config in one folder (or $KVCTL_STATE_DIR)",
    )
    options.add_argument("--server", metavar="NAME", help="which server, where there are several")
    options.add_argument("--run", metavar="NAME", help="which run, where there are several")
    return options


def _add_reading(verbs: _Verbs) -> None:
    verbs.add("status", "reading:status", "what runs now, on one page", json=True)
    watch = verbs.add("watch", "watching:watch", "the same as a stream, until Ctrl-C", json=True)
    watch.add_argument("--plain", action="store_true", help="one line per fact, for screen readers")
    watch.add_argument("--interval", type=_seconds, default=2.0, metavar="S", help="default 2")
    watch.add_argument("--count", type=_positive, metavar="N", help="end after N snapshots")
    watch.add_argument(
        "--since", type=since, metavar="T", help="first what was: 30m, 2h, 14:05 (kept for 2 days)"
    )
    _add_planning(verbs)
    verbs.add("gpus", "reading:gpus", "devices, processes, holders and what each is", json=True)
    demo = verbs.add("demo", "demo:demo", "a simulated 8-GPU host running B1..B7", json=True)
    demo.add_argument("--headless", action="store_true", help="no panel: run to the end, then tell")
    demo.add_argument("--scenario", metavar="NAME", help="default: the mission's; ? lists them")
    demo.add_argument("--speed", type=_factor, metavar="X", help="simulated seconds a second")
    verbs.add("doctor", "doctor:doctor", "check this host and say what to do", json=True)


def _add_planning(verbs: _Verbs) -> None:
    launches = verbs.add(
        "launches", "launches:launches", "every launch here, predicted beside measured", json=True
    )
    launches.add_argument("launch", metavar="PRESET|ID", nargs="?", help="an id: in full")
    memo = verbs.add("report", "report:report", "the decision memo, as Markdown")
    memo.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there")
    plan = verbs.add("plan", "plan:show_plan", "presets side by side before a restart", json=True)
    plan.add_argument("presets", metavar="PRESET", nargs="*", help="default: all")
    plan.add_argument(
        "--lengths",
        metavar="TOKENS",
        type=_positive,
        nargs="+",
        help="mean lengths of answers; default: those of the open run, or of the file --run names",
    )


def _add_kill(verbs: _Verbs) -> None:
    kill = verbs.add("kill", "killing:kill", "end processes, and prove that their memory is back")
    kill.add_argument("pids", metavar="PID", type=_positive, nargs="*")
    kill.add_argument(
        "--group", action="store_true", help="the whole launch that each PID belongs to"
    )
    kill.add_argument("--leftovers", action="store_true", help="what servers left behind")
    kill.add_argument("--gpu", type=_whole, metavar="N", help="every holder of this GPU")
    kill.add_argument("--signal", choices=("TERM", "KILL", "INT", "QUIT"))
    kill.add_argument("--wait", type=_seconds, default=15.0, metavar="S", help="default 15")
    _add_yes(kill)


def _add_presets(verbs: _Verbs) -> None:
    presets = verbs.group("presets", "how servers are launched: list, show, validate, diff, edit")
    presets.add("list", "presets:list_presets", "every preset and whether it can run", json=True)
    show = presets.add("show", "presets:show", "one preset with what it extends", json=True)
    show.add_argument("preset", metavar="PRESET")
    show.add_argument("--why", action="store_true", help="the file and line of every setting")
    validate = presets.add("validate", "presets:validate", "check presets completely", json=True)
    validate.add_argument("presets", metavar="PRESET", nargs="*", help="default: all")
    diff = presets.add("diff", "presets:show_diff", "what changes between two presets", json=True)
    diff.add_argument("before", metavar="PRESET", help="a preset, or `running`")
    diff.add_argument("after", metavar="PRESET")
    _add_preset_writing(presets)
    flags = verbs.add(
        "flags", "flags:flags", "flags of the running server, or of the SGLang here", json=True
    )
    flags.add_argument("--catalogue", action="store_true", help="every flag of the SGLang here")
    flags.add_argument("--diff", metavar="PRESET", help="only what this preset sets")
    flags.add_argument("--search", metavar="WORD")
    flags.add_argument("--python", metavar="PATH", help="the interpreter that has SGLang")


def _add_preset_writing(presets: _Verbs) -> None:
    save = presets.add("save", "preset_writing:save", "keep the running launch as a preset")
    change = presets.add("set", "preset_writing:set_keys", "change keys, keeping the comments")
    change.add_argument("preset", metavar="PRESET")
    change.add_argument("keys", metavar="KEY=VALUE", nargs="+", help="flag, launch.X or NAME (env)")
    unset = presets.add("unset", "preset_writing:unset_keys", "take keys away")
    unset.add_argument("preset", metavar="PRESET")
    unset.add_argument("keys", metavar="KEY", nargs="+")
    docker = presets.add(
        "from-docker", "preset_writing:from_docker", "a preset like a container that was inspected"
    )
    docker.add_argument("source", metavar="CONTAINER|FILE|-", help="a name, or `docker inspect`'s")
    unit = presets.add(
        "from-systemd", "preset_writing:from_systemd", "a preset like a systemd unit"
    )
    unit.add_argument("source", metavar="UNIT|FILE|-", help="a name, or the text of systemctl cat")
    for verb in (docker, unit):
        verb.add_argument("--as", dest="name", metavar="NAME", help="default: the source's name")
    save.add_argument("name", metavar="NAME")
    for verb in (save, docker, unit):
        verb.add_argument("--replace", action="store_true", help="overwrite one of that name")


def _add_server(verbs: _Verbs) -> None:
    server = verbs.group("server", "start, stop, restart, watch a server")
    start = server.add("start", "servers:start", "launch a preset and wait until it serves")
    start.add_argument("preset", metavar="PRESET")
    stop = server.add("stop", "servers:stop", "stop it and prove its GPUs clean")
    restart = server.add("restart", "servers:restart", "stop, prove clean, start, resume the run")
    restart.add_argument("preset", metavar="PRESET", nargs="?", help="default: the same")
    for verb in (stop, restart):
        verb.add_argument("--how", choices=_HOW, default="harvest", help="default harvest")
        verb.add_argument(
            "--cut-foreign", action="store_true", help="cut requests that are not kvctl's own too"
        )
        _add_yes(verb)
    server.add("cancel", "servers:cancel", "stop the start or restart in progress")
    adopt = server.add("adopt", "servers:adopt", "watch a server that already runs")
    adopt.add_argument("target", metavar="URL|PID")
    server.add("forget", "servers:forget", "stop watching it; nothing is done to it")
    cap = server.add("cap", "servers:cap", "cap what it runs at once, whoever sent it")
    cap.add_argument("running", metavar="N|off", type=_cap)
    logs = server.add("logs", "servers:logs", "the end of its log")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    logs.add_argument("-n", "--lines", type=_whole, default=50, metavar="N", help="default 50")


def _add_run(verbs: _Verbs) -> None:
    run = verbs.group("run", "generate a dataset through the servers")
    start = run.add("start", "runs:start", "start a run file, or take it up where it stands")
    start.add_argument("file", metavar="FILE", type=Path)
    start.add_argument("--force", action="store_true", help="although model or sampling changed")
    start.add_argument(
        "--accept-damage", action="store_true", help="make rows again whose answers are damaged"
    )
    pause = run.add("pause", "runs:pause", "stop sending")
    pause.add_argument("--how", choices=_PAUSES, default="drain", help="default drain")
    run.add("resume", "runs:resume", "send again")
    throttle = run.add("throttle", "runs:throttle", "set the requests in flight")
    throttle.add_argument("slots", metavar="N|auto", type=_slots)
    weights = run.add("weights", "runs:weights", "change the shares of partitions")
    weights.add_argument("weights", metavar="NAME=W", nargs="+", type=_weight)
    servers = run.add("servers", "runs:servers", "let the run send to more servers, or to fewer")
    servers.add_argument("--add", metavar="URL|NAME", action="append", default=[])
    servers.add_argument("--remove", metavar="URL|NAME", action="append", default=[])
    servers.add_argument("--how", choices=_HOW, default="harvest", help="default harvest")
    run.add("status", "runs:status", "the run and its partitions", json=True)
    run.add("retry-failed", "runs:retry_failed", "queue failed rows again")
    run.add("close", "runs:close", "end the run's driver; its files stay")
    verify = run.add("verify", "exporting:verify", "is every id on disk exactly once?", json=True)
    _add_run_place(verify)
    _add_export(run)


def _add_export(run: _Verbs) -> None:
    export = run.add(
        "export", "exporting:export", "write the answers as JSON lines, each row once", json=True
    )
    _add_run_place(export)
    export.add_argument(
        "--partition", metavar="P", action="append", help="only this one; may be given again"
    )
    export.add_argument(
        "--where", metavar="EXPR", help="such as: finish == 'stop' and completion_tokens < 8000"
    )
    export.add_argument("--format", choices=_FORMATS, default="ids", help="default ids")
    export.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help=".gz and .zst are packed, .parquet is a table; default: stdout",
    )
    export.add_argument("--force", action="store_true", help="replace the file if it is there")
    export.add_argument(
        "--order", choices=("input", "journal"), default="input", help="journal needs no inputs"
    )
    export.add_argument(
        "--accept-damage", action="store_true", help="leave out lines that cannot be read"
    )


def _add_run_place(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="run file or output folder; default: the present run's",
    )


def _add_daemon(verbs: _Verbs) -> None:
    daemon = verbs.group("daemon", "kvctld, the process that outlives the terminal")
    daemon.add("start", "daemons:start", "start it where it does not run")
    daemon.add("stop", "daemons:stop", "end it; servers go on, the run is taken up by the next")
    daemon.add("status", "daemons:status", "pid, socket, version", json=True)
    run = daemon.add("run", "daemons:run", "be kvctld, in the foreground")
    run.add_argument("--stay", action="store_true", help="never leave by itself when idle")
    run.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)
    run.add_argument("--simulated", type=Path, metavar="DIR", help="a simulated host's folder")
    daemon.add("install", "daemons:install", "write a systemd user unit")


def _add_yes(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--yes", action="store_true", help="do not ask (needed without a terminal)")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _number(kind: Callable[[str], float], low: float, wanted: str) -> Callable[[str], Any]:
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = low - 1
        if not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return read


_whole = _number(int, 0, "a whole number")
_positive = _number(int, 1, "a number above 0")
_seconds = _number(float, 0.0, "a number of seconds")
_factor = _number(float, 0.01, "a factor of at least 0.01")


def _slots(text: str) -> int | None:
    value: int | None = None if text == "auto" else _whole(text)
    return value


def _cap(text: str) -> int | None:
    value: int | None = None if text == "off" else _whole(text)
    return value


def _weight(text: str) -> tuple[str, float]:
    name, equals, number = text.rpartition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=W, such as B2=2")
    return name, _number(float, 0.0, "NAME=W with a weight from 0")(number)
