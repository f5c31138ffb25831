"""The `kvctl` command: finds the verb, carries it out, turns every failure into one line.

Imports nothing heavy: `kvctl --version` and `--help` load neither httpx nor the panel.
"""

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kvctl.core.cli.parser import build_parser
from kvctl.core.cli.session import Session, Verb
from kvctl.core.domain.errors import KvctlError

if TYPE_CHECKING:
    from kvctl.core.cli.panel import OpenPanel

INTERRUPTED = 130


def run(
    words: Sequence[str], environ: Mapping[str, str], open_panel: "OpenPanel | None" = None
) -> int:
    """Carry out one command line and return its exit status."""
    _survive_any_locale()
    session: Session | None = None
    try:
        session = Session(build_parser().parse_args(words), environ, open_panel)
        return _carry_out(session)
    except KvctlError as error:
        return _tell(str(error), error.exit_status)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _stop_writing()
        return 1
    except Exception as error:  # the last boundary: the traceback goes to a file, not the screen
        where = _write_traceback(session)
        return _tell(f"unexpected {type(error).__name__}: {error}; details in {where}", 1)


def _carry_out(session: Session) -> int:
    if session.words.version:
        from kvctl import __version__

        session.say(f"kvctl {__version__}")
        return 0
    module, _, function = session.words.function.partition(":")
    verb = getattr(importlib.import_module(f"kvctl.core.cli.{module}"), function)
    return cast(Verb, verb)(session)


def _survive_any_locale() -> None:
    # LANG=C must cost a glyph, not the command.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _tell(message: str, status: int) -> int:
    from kvctl.core.domain.logs.text import clean_line

    line = clean_line(" ".join(message.split()))
    print(f"kvctl: {line}", file=sys.stderr, flush=True)
    return status


def _stop_writing() -> None:
    # Python would complain about the closed pipe once more when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_traceback(session: Session | None) -> Path:
    text = traceback.format_exc()
    name = "kvctl-errors.log"
    for path in _places(session, name):
        try:
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text + "\n")
        except OSError:
            continue
        return path
    return Path(os.devnull)


def _places(session: Session | None, name: str) -> list[Path]:
    usual = Path(tempfile.gettempdir()) / f"kvctl-{os.getuid()}-errors.log"
    return [usual] if session is None else [session.paths.state / name, usual]
