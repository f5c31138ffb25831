"""What the controller needs from the outside, as Protocols.

Adapters (probes, servers, runs, the simulated host) implement them; tests implement them as
fakes. Raw vendor shapes end inside the adapters: only domain types pass through here.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvctl.core.domain.gpus.devices import GpuReading, ProcessFacts, ProcessIdentity
from kvctl.core.domain.logs.lines import LogRecord
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, ServerInfo


class ProbeFailed(Exception):
    """A source did not answer; `cause` is one of a few words, `detail` one line."""

    def __init__(self, cause: str, detail: str) -> None:
        """Keep the cause (refused, timeout, http 401, bad answer …) and the detail."""
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


class GpuSource(Protocol):
    """Devices and the processes their driver lists."""

    is_simulated: bool

    def read(self, at: float) -> GpuReading:
        """Read all devices; blocking, called in a thread. Problems are values, not raised."""


class Processes(Protocol):
    """What /proc says, and signals that cannot hit the wrong process."""

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return what is known of a live process, None if it is not visible here."""

    def environment(self, identity: ProcessIdentity, name: str) -> str | None:
        """Return one variable of a process's environment, None if unset or unreadable."""

    def all_facts(self) -> Sequence[ProcessFacts]:
        """Return every process visible here."""

    def device_file_holders(self) -> Mapping[int, tuple[int, ...]]:
        """Return pid -> GPU minor numbers of /dev/nvidia* nodes it has open or mapped."""

    def is_alive(self, identity: ProcessIdentity) -> bool:
        """Return whether this very process still runs (a zombie does not)."""

    def send(self, identity: ProcessIdentity, number: signal.Signals) -> None:
        """Send a signal through a pidfd after checking the start time.

        Raises:
            ProcessLookupError: It is gone, or the pid belongs to another process now.
            PermissionError: The kernel forbids it.
        """


class Engine(Protocol):
    """A running SGLang server's HTTP interface (one instance a URL)."""

    url: str

    async def loads(self) -> LoadsReading:
        """Read counts from the best source this version has. Raises ProbeFailed."""

    async def metrics(self) -> MetricsReading:
        """Read /metrics. Raises ProbeFailed; cause "off" where it is not mounted."""

    async def server_info(self) -> ServerInfo:
        """Read /server_info: flags, pool, version. Waits for the scheduler. Raises ProbeFailed."""

    async def model_name(self) -> str:
        """Read /model_info, which the front end answers alone. Raises ProbeFailed."""

    async def is_ready(self) -> bool | None:
        """Ask /ready: None where this version has none. Raises ProbeFailed."""

    async def pause(self, mode: str) -> None:
        """Pause the engine, "retract" or "in_place" only. Raises ProbeFailed."""

    async def unpause(self) -> None:
        """Continue a paused engine. Raises ProbeFailed."""

    async def abort(self, rid: str) -> None:
        """Abort the request with this id (ids end in a delimiter). Raises ProbeFailed."""

    async def abort_all(self) -> None:
        """Abort every request, whoever sent it. Raises ProbeFailed."""

    async def set_live_cap(self, running: int) -> int:
        """Set pp_max_micro_batch_size, read it back and return it. Raises ProbeFailed."""

    async def close(self) -> None:
        """Close connections."""


class LogTail(Protocol):
    """A server's log, followed by inode."""

    path: str

    def read_new(self) -> Sequence[LogRecord]:
        """Return the records since the last call, oldest first; empty if nothing is new."""

    def startup_records(self) -> Sequence[LogRecord]:
        """Return the last launch's records up to its ready line; reads backwards, blocking."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request to /generate."""

    rid: str
    """Unique, fixed width, ends in "."."""
    text: str | None
    input_ids: tuple[int, ...] | None
    """Exactly one of `text` and `input_ids`."""
    sampling: Mapping[str, object]
    """SGLang's sampling_params."""
    vocabulary: int | None = None
    """Number of token ids, for reading the answer only; None: not known."""


@dataclass(frozen=True, slots=True)
class GenerateReply:
    """What came back, before it is judged."""

    status: int
    """HTTP status."""
    text: str | None
    output_ids: Sequence[int]
    finish: Mapping[str, object] | None
    """finish_reason as SGLang gives it."""
    meta: Mapping[str, object]
    """meta_info, whole."""
    error: str | None
    """The error text of a non-200 answer."""


class TransportFailed(Exception):
    """No answer; `sent` tells whether the server may have begun the work."""

    def __init__(self, detail: str, *, sent: bool) -> None:
        """Keep what happened and whether the request may have reached the server."""
        super().__init__(detail)
        self.sent = sent


class Generator(Protocol):
    """Sends requests of the run to one server."""

    url: str

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """Send one request and wait for its end, however long. Raises TransportFailed."""

    async def abort(self, rid: str) -> None:
        """Abort one request. Raises TransportFailed."""

    async def is_alive(self) -> bool:
        """Return whether the server's front end answers now; never raises."""

    async def close(self) -> None:
        """Close connections."""
