"""`kvctl daemon`: kvctld itself."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.core.cli.session import Session
from kvctl.core.domain.errors import DaemonUnreachable, KvctlError

if TYPE_CHECKING:
    from kvctl.core.daemon.port import ServedController

_UNIT = """\
[Unit]
Description=kvctld, the control daemon of kvctl

[Service]
ExecStart={command}
Restart=on-failure
# Servers that kvctld launched outlive it.
KillMode=process

[Install]
WantedBy=default.target
"""


def start(session: Session) -> int:
    """Start kvctld where it does not run."""
    from kvctl.core.daemon.spawn import ensure_running, running

    before = running(session.paths)
    info = before or ensure_running(session.launch)
    done = "already runs" if before else "started"
    session.say(f"kvctld {info.version} {done}: pid {info.pid}, socket {info.socket}")
    return 0


def stop(session: Session) -> int:
    """Ask kvctld to leave and wait until it has."""
    from kvctl.core.daemon.spawn import stop as stop_kvctld

    pid = stop_kvctld(session.paths)
    session.say("kvctld does not run" if pid is None else f"kvctld (pid {pid}) has left")
    return 0


def status(session: Session) -> int:
    """Say where kvctld is; starts none."""
    from dataclasses import asdict

    from kvctl.core.daemon.spawn import running
    from kvctl.core.domain.units import duration

    info = running(session.paths)
    if info is None:
        raise DaemonUnreachable(
            f"kvctld does not run (no answer at {session.paths.socket}); "
            "`kvctl daemon start` starts it"
        )
    if session.wants_json():
        session.document(asdict(info))
        return 0
    kind = ", simulated host" if info.is_simulated else ""
    session.say(f"kvctld {info.version}  pid {info.pid}  up {duration(info.uptime_s)}{kind}")
    session.say(f"socket {info.socket}")
    session.say(f"state  {info.state}")
    session.say(f"log    {info.log}")
    session.say(f"panels {', '.join(info.operators) or 'none'}")
    return 0


def run(session: Session) -> int:
    """Be kvctld until told to leave."""
    from kvctl.core.daemon.process import serve_here
    from kvctl.core.daemon.server import DaemonOptions

    words = session.words
    simulated: Path | None = words.simulated and words.simulated.absolute()

    def build() -> "ServedController":
        from kvctl.core.daemon.compose import build_controller

        return build_controller(session.paths, session.environ, simulated)

    options = DaemonOptions(idle_exit_s=None) if words.stay else DaemonOptions()
    serve_here(session.paths, build, options, is_detached=words.detached)
    return 0


def install(session: Session) -> int:
    """Write a systemd user unit and print the two commands that enable it."""
    folder = Path(session.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = folder / "systemd" / "user" / "kvctld.service"
    where = [] if session.state_dir is None else ["--state-dir", str(session.state_dir)]
    command = [sys.executable, "-P", "-m", "kvctl", *where, "daemon", "run", "--stay"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_UNIT.format(command=" ".join(map(_unit_word, command))), "utf-8")
    except OSError as error:
        raise KvctlError(f"{path} cannot be written: {error.strerror}") from error
    session.say(f"wrote {path}; now run these two:")
    session.say(f"loginctl enable-linger {_user(session)}")
    session.say("systemctl --user daemon-reload && systemctl --user enable --now kvctld")
    return 0


def _unit_word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word


def _user(session: Session) -> str:
    return session.environ.get("USER") or str(os.getuid())
