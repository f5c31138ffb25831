"""The errors of kvctl, each with the exit status that the CLI gives it.

    KvctlError                 1  the command failed; what was observed is said
    ├── UsageError             2  the words or a file are wrong
    │   ├── PresetError           a preset, with path and key
    │   ├── RunFileError          a run file or its inputs
    │   └── ConfigError           config.toml
    ├── DaemonUnreachable      3  kvctld does not answer
    ├── CommandRefused         4  a guard or a rule says no; which one is named
    └── CommandTimedOut        5  the time given ran out

Every message is one line: what happened, where, what to do next.
"""


class KvctlError(Exception):
    """A failure that is told in one line."""

    exit_status = 1


class UsageError(KvctlError):
    """The words of a command, or a file it names, are wrong."""

    exit_status = 2


class PresetError(UsageError):
    """A preset cannot be used; the message names file and key."""


class RunFileError(UsageError):
    """A run file or one of its inputs cannot be used; the message names file and line."""


class ConfigError(UsageError):
    """config.toml cannot be used."""


class DaemonUnreachable(KvctlError):
    """Kvctld does not answer on its socket."""

    exit_status = 3


class CommandRefused(KvctlError):
    """A guard or a rule refused before anything was touched."""

    exit_status = 4


class CommandTimedOut(KvctlError):
    """The time that was given ran out; what is known by then is in the message."""

    exit_status = 5
