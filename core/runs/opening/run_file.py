"""Reads a run file from disk; what may stand in it is `kvctl.core.domain.runs.parse`."""

import tomllib
from pathlib import Path

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.parse import parse_run
from kvctl.core.domain.runs.run_file import RunSpec


def load_run(path: str | Path) -> RunSpec:
    """Return the run of a file, its paths made absolute relative to the file.

    Raises:
        RunFileError: It cannot be read or is not as it should be; every problem is a line.
    """
    file = Path(path).expanduser().absolute()
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFileError(f"{file}: no such run file") from None
    except OSError as error:
        raise RunFileError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{file}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"{file}: not valid TOML: {error}") from error

    def resolve(given: str) -> str:
        return str(file.parent / Path(given).expanduser())

    return parse_run(document, str(file), resolve)
