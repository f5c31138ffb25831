"""Which endpoint tells the load: found once a server and version, then remembered."""

from collections.abc import Awaitable, Callable

from kvctl.core.domain.telemetry.loads import loads_of_info, parse_get_load, parse_v1_loads
from kvctl.core.domain.telemetry.readings import LoadsReading, ServerInfo
from kvctl.core.ports import ProbeFailed

GetJson = Callable[[str], Awaitable[object]]
"""Fetch a path as JSON; ProbeFailed with cause "absent" on 404."""


class LoadsLadder:
    """Tries /v1/loads, /get_load and /server_info in turn and stays with the first that answers.

    Source: /v1/loads from 0.5.8, /get_load from 0.4.7 to 0.5.20; the deprecated one logs a warning
    a call, so it is only used where the new one is missing.
    """

    def __init__(self, get_json: GetJson, get_info: Callable[[], Awaitable[ServerInfo]]) -> None:
        """Take the ways to fetch a path and the server's own description."""
        self._get_json = get_json
        self._get_info = get_info
        self._source: str | None = None
        self._version: str | None = None
        self.has_metrics: bool | None = None
        """Whether the server runs with --enable-metrics, as far as known."""

    @property
    def source(self) -> str | None:
        """Return the endpoint in use, None before the first answer."""
        return self._source

    @property
    def version(self) -> str | None:
        """Return the server's version as last seen."""
        return self._version

    def forget(self) -> None:
        """Start over at the next reading: the server is gone or another one answers."""
        self._source, self._version, self.has_metrics = None, None, None

    def note_info(self, info: ServerInfo) -> None:
        """Learn version and metrics from a /server_info answer; another version starts over."""
        if self._version is not None and info.version != self._version:
            self.forget()
        self._version = info.version
        self.has_metrics = info.flags.get("enable_metrics") is True

    async def read(self, at: Callable[[], float], wall: Callable[[], float]) -> LoadsReading:
        """Read the load from the best source. Raises ProbeFailed."""
        if self._source is not None:
            try:
                return await self._read_from(self._source, at, wall)
            except ProbeFailed as failure:
                if failure.cause != "absent":
                    raise
                self.forget()  # another version answers under this address
        for source in ("/v1/loads", "/get_load"):
            try:
                reading = await self._read_from(source, at, wall)
            except ProbeFailed as failure:
                if failure.cause != "absent":
                    raise
            else:
                self._source = source
                return reading
        try:
            reading = await self._read_from("/server_info", at, wall)
        except ProbeFailed as failure:
            if failure.cause != "absent":
                raise
            raise ProbeFailed("bad_answer", "no SGLang endpoint tells the load") from failure
        self._source = "/server_info"
        return reading

    async def _read_from(
        self, source: str, at: Callable[[], float], wall: Callable[[], float]
    ) -> LoadsReading:
        if source == "/server_info":
            return loads_of_info(await self._get_info(), at(), wall())
        if source == "/get_load" and self._version is None:
            await self._get_info()
        body = await self._get_json(source)
        if source == "/get_load":
            reading = parse_get_load(body, at(), wall(), self._version)
        else:
            reading = parse_v1_loads(body, at(), wall(), has_metrics=self.has_metrics)
        if reading is None:
            raise ProbeFailed("bad_answer", f"{source}: not a load answer")
        self._note_version(reading)
        return reading

    def _note_version(self, reading: LoadsReading) -> None:
        if reading.version is not None and reading.version != self._version:
            if self._version is not None:
                self.has_metrics = None
            self._version = reading.version
