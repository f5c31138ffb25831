"""A running SGLang server's HTTP interface, told as readings and typed failures.

The key, where one is needed, is sent as a bearer token and never appears in a message. Proxies of
the environment are ignored. `/health` is not asked: it injects a request and tells little.
"""

from collections.abc import Mapping
from typing import Any

import httpx

from kvctl.core.clock import Clock
from kvctl.core.domain.jsonfields import as_list, as_mapping, text
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, ServerInfo
from kvctl.core.domain.telemetry.server_info import parse_server_info
from kvctl.core.domain.versions import is_at_least
from kvctl.core.ports import ProbeFailed
from kvctl.core.probes.loads_ladder import LoadsLadder
from kvctl.core.probes.metrics_text import parse_metrics

_TIMEOUT = httpx.Timeout(5.0, connect=2.0)
_LIMITS = httpx.Limits(max_connections=4, max_keepalive_connections=2)
_PAUSE_MODES = ("retract", "in_place")
_PAUSE_SINCE = (0, 5, 6)
"""Before, a mode is ignored and every request is aborted."""
_CAP_SINCE, _CAP_RENAMED = (0, 4, 6), (0, 5, 4)


class SglangEngine:
    """One server's endpoints; implements `ports.Engine`."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare a client for `url` (scheme, host, port); nothing is sent yet."""
        self.url = url.rstrip("/")
        self._clock = clock
        self._paths: dict[str, str] = {}
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=_TIMEOUT,
            limits=_LIMITS,
            trust_env=False,
            transport=transport,
        )
        self._ladder = LoadsLadder(self._json, self.server_info)

    async def loads(self) -> LoadsReading:
        """Read counts from the best source this version has. Raises ProbeFailed."""
        return await self._ladder.read(self._clock.monotonic, self._clock.wall)

    async def metrics(self) -> MetricsReading:
        """Read /metrics. Raises ProbeFailed; cause "off" where it is not mounted."""
        path = self._paths.get("/metrics", "/metrics")
        answer = await self._send("GET", path)
        if answer.is_redirect and path == "/metrics":
            # Source: a mounted application answers under its own folder in some versions.
            self._paths["/metrics"] = "/metrics/"
            answer = await self._send("GET", "/metrics/")
        self._ladder.has_metrics = answer.status_code != 404
        if answer.status_code == 404:
            raise ProbeFailed("off", "the server runs without --enable-metrics")
        self._check(answer, "/metrics")
        return parse_metrics(answer.text, self._clock.monotonic())

    async def server_info(self) -> ServerInfo:
        """Read /server_info: flags, pool, version. Waits for the scheduler. Raises ProbeFailed."""
        body = await self._first_of("/server_info", "/get_server_info")
        info = parse_server_info(body, self._clock.monotonic())
        if info is None:
            raise ProbeFailed("bad_answer", "/server_info: not a description of a server")
        self._ladder.note_info(info)
        return info

    async def model_name(self) -> str:
        """Read /model_info, which the front end answers alone. Raises ProbeFailed."""
        body = as_mapping(await self._first_of("/model_info", "/get_model_info"))
        name = text(body, "served_model_name") or text(body, "model_path")
        if name is None:
            raise ProbeFailed("bad_answer", "/model_info: it names no model")
        return name

    async def is_ready(self) -> bool | None:
        """Ask /ready (0.5.20 and later): None where it does not exist. Raises ProbeFailed."""
        answer = await self._send("GET", "/ready")
        if answer.status_code == 404:
            return None
        if answer.status_code not in (200, 503):
            self._check(answer, "/ready")
        return answer.status_code == 200

    async def pause(self, mode: str) -> None:
        """Pause the engine, "retract" or "in_place" only. Raises ProbeFailed."""
        if mode not in _PAUSE_MODES:
            raise ValueError(f"pause mode {mode!r}: only retract and in_place keep the requests")
        if not is_at_least(await self._version(), _PAUSE_SINCE):
            raise ProbeFailed("unsupported", f"version {self._ladder.version}: no pause modes")
        await self._post("/pause_generation", {"mode": mode})

    async def unpause(self) -> None:
        """Continue a paused engine. Raises ProbeFailed."""
        await self._post("/continue_generation", {})

    async def abort(self, rid: str) -> None:
        """Abort the request with this id (ids end in a delimiter). Raises ProbeFailed."""
        if not rid:
            raise ValueError("an empty request id matches every request")
        await self._post("/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        """Abort every request, whoever sent it. Raises ProbeFailed."""
        await self._post("/abort_request", {"rid": "", "abort_all": True})

    async def set_live_cap(self, running: int) -> int:
        """Set pp_max_micro_batch_size, read it back and return it. Raises ProbeFailed."""
        if isinstance(running, bool) or not isinstance(running, int) or running < 1:
            raise ValueError(f"a cap is a whole number from 1 up, not {running!r}")
        version = await self._version()
        if not is_at_least(version, _CAP_SINCE):
            raise ProbeFailed("unsupported", f"version {version}: no live cap")
        is_renamed = is_at_least(version, _CAP_RENAMED)
        name = "pp_max_micro_batch_size" if is_renamed else "max_micro_batch_size"
        answer = await self._post("/set_internal_state", {"server_args": {name: running}})
        # Old versions answer true for what they rejected: only the value read back counts.
        cap = (await self.server_info()).live_cap
        if cap is None or (cap != running and False in as_list(_json_of(answer))):
            raise ProbeFailed("rejected", f"the server kept its cap of {cap}")
        return cap

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def _version(self) -> str | None:
        if self._ladder.version is None:
            await self.server_info()
        return self._ladder.version

    async def _first_of(self, path: str, older: str) -> object:
        """Fetch `path`, or its older spelling where this server has only that; remembered."""
        known = self._paths.get(path, path)
        try:
            return await self._json(known)
        except ProbeFailed as failure:
            if failure.cause != "absent" or known == older:
                raise
            self._paths.pop(path, None)
        try:
            body = await self._json(older)
        except ProbeFailed as failure:
            if failure.cause != "absent":
                raise
            raise ProbeFailed("bad_answer", f"{path}: no SGLang server answers here") from failure
        self._paths[path] = older
        return body

    async def _json(self, path: str) -> object:
        answer = await self._send("GET", path)
        self._check(answer, path)
        body = _json_of(answer)
        if body is None:
            raise ProbeFailed("bad_answer", f"{path}: not JSON")
        return body

    async def _post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        answer = await self._send("POST", path, body)
        if answer.status_code in (404, 405):
            raise ProbeFailed("unsupported", f"{path}: this version does not have it")
        self._check(answer, path)
        return answer

    async def _send(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> httpx.Response:
        try:
            return await self._client.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise ProbeFailed("timeout", f"{path}: {_name(error)}") from error
        except httpx.TransportError as error:
            self._forget()
            raise ProbeFailed("refused", f"{self.url}: {_name(error)}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProbeFailed("bad_answer", f"{path}: {_name(error)}") from error

    def _forget(self) -> None:
        """Another server may answer next: nothing learnt about this one holds for it."""
        self._ladder.forget()
        self._paths.clear()

    @staticmethod
    def _check(answer: httpx.Response, path: str) -> None:
        status = answer.status_code
        if status == 404:
            raise ProbeFailed("absent", f"{path}: 404, this version does not have it")
        if status in (401, 403):
            raise ProbeFailed("unauthorized", f"{path}: {status}, the server wants a key")
        if not answer.is_success:
            raise ProbeFailed("http", f"{path}: status {status}")


def _json_of(answer: httpx.Response) -> Any:  # noqa: ANN401  JSON enters here
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def _name(error: Exception) -> str:
    """Return an error in a few words, without the request (whose headers may hold a key)."""
    return str(error) or type(error).__name__
