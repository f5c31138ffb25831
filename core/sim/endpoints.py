"""The HTTP interface of the simulated server besides /generate.

Source: SGLang 0.5.23 entrypoints/http_server.py, v1_loads.py; pauses, aborts and probes as seen
on a real server.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvctl.core.sim.engines import Engines
from kvctl.core.sim.exposition import Latencies, metrics_text
from kvctl.core.sim.generate import GenerateEndpoint
from kvctl.core.sim.logfile import ServerLog
from kvctl.core.sim.model import PrefillBatch
from kvctl.core.sim.replies import Front, loads_reply, model_info_reply, server_info_reply

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEALTH_TIMEOUT_S = 20.0
"""Source: SGLANG_HEALTH_CHECK_TIMEOUT."""
OPEN_PATHS = ("/health", "/ready", "/metrics")
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)
LIVE_KEYS = ("pp_max_micro_batch_size",)


@dataclass(slots=True)
class ServerState:
    """Where the server stands in its life."""

    is_up: bool = False
    """Fired up: the warm-up request has been answered."""
    is_draining: bool = False
    is_unhealthy: bool = False
    """The last health probe failed; a SIGTERM then skips the drain."""
    is_hung: bool = False
    """Connections are taken and nothing is answered any more."""
    control_replies: int = 0
    """Answers of the scheduler to control messages; any of them satisfies a health probe."""


class Endpoints:
    """All routes of one server."""

    def __init__(
        self,
        front: Front,
        log: ServerLog,
        state: ServerState,
        latencies: dict[str, Latencies],
        speed: float,
    ) -> None:
        """Serve this front."""
        self._front = front
        self._log = log
        self._state = state
        self._latencies = latencies
        self._generate = GenerateEndpoint(front, log, speed)

    @property
    def _engine(self) -> Engines:
        return self._front.engine

    def application(self) -> web.Application:
        """Return the application with every route."""
        app = web.Application(
            middlewares=[self._log_access, self._guard], client_max_size=512 * 1024**2
        )
        add = app.router.add_route
        for path, handler in self._reading().items():
            add("GET", path, handler)
        for path, handler in self._acting().items():
            add("POST", path, handler)
        add("PUT", "/generate", self._generate)
        add("GET", "/flush_cache", self._flush)
        return app

    def _reading(self) -> dict[str, Handler]:
        routes: dict[str, Handler] = {
            "/health": self._health,
            "/health_generate": self._health,
            "/ready": self._ready,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/loads": self._loads,
            "/v1/models": self._models,
        }
        if self._front.has_metrics:
            routes |= {"/metrics": self._metrics, "/metrics/": self._metrics}
        return routes

    def _acting(self) -> dict[str, Handler]:
        return {
            "/generate": self._generate,
            "/abort_request": self._abort,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/flush_cache": self._flush,
            "/set_internal_state": self._set_internal_state,
            "/freeze_gc": self._freeze_gc,
        }

    # -- around every request --------------------------------------------------------------

    @web.middleware
    async def _log_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        route = request.match_info.route.resource
        path = (route.canonical if route else "unknown").removesuffix("/")
        self._front.requests[path, request.method] += 1
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = web.json_response({"detail": error.reason}, status=error.status)
        self._front.responses[path, request.method, response.status] += 1
        peer = request.transport.get_extra_info("peername") if request.transport else None
        name = f"{peer[0]}:{peer[1]}" if peer else "-"
        self._log.access(name, request.method, request.path_qs, response.status, response.reason)
        return response

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._state.is_hung:
            await asyncio.Event().wait()
        key = self._front.arguments.values["api_key"]
        is_open = not key or request.path.startswith(OPEN_PATHS)
        if not is_open and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    # -- probes ----------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.StreamResponse:
        if self._state.is_draining:
            self._log.main("Health check request received during shutdown. Returning 503.")
            return web.Response(status=503)
        if not self._state.is_up:
            return web.Response(status=503)
        clock = self._engine.clock
        began, replies = clock.monotonic(), self._state.control_replies
        if self._engine.is_idle and self._engine.paused_mode is None:
            self._log.event(PrefillBatch(began, 1, 1, 0.0, 0, 0, 0, 1.0))
        while clock.monotonic() - began < HEALTH_TIMEOUT_S:
            await clock.sleep(1.0)
            if self._engine.paused_mode is None or self._state.control_replies > replies:
                self._state.is_unhealthy = False
                return web.Response(status=200)
        self._state.is_unhealthy = True
        self._log.main(
            "Health check failed. Server couldn't get a response from detokenizer for last "
            f"{HEALTH_TIMEOUT_S:.0f} seconds."
        )
        return web.Response(status=503)

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        state = self._state
        is_ready = state.is_up and not state.is_draining and not state.is_unhealthy
        is_ready = is_ready and self._engine.paused_mode is None
        return web.Response(status=200 if is_ready else 503)

    # -- reading ---------------------------------------------------------------------------

    def _deprecated(self, request: web.Request) -> None:
        if request.path.startswith("/get_"):
            better = "/" + request.path.removeprefix("/get_")
            self._log.main(
                f"Endpoint '{request.path}' is deprecated and will be removed in a future "
                f"version. Please use '{better}' instead."
            )

    async def _model_info(self, request: web.Request) -> web.StreamResponse:
        self._deprecated(request)
        return web.json_response(model_info_reply(self._front.arguments.values))

    async def _server_info(self, request: web.Request) -> web.StreamResponse:
        self._deprecated(request)
        self._engine.pump()
        self._state.control_replies += 1
        return web.json_response(server_info_reply(self._front))

    async def _loads(self, request: web.Request) -> web.StreamResponse:
        self._engine.pump()
        return web.json_response(loads_reply(self._front))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self._engine.pump()
        text = metrics_text(self._front, self._latencies)
        return web.Response(
            body=text.encode(),
            headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"},
        )

    async def _models(self, request: web.Request) -> web.StreamResponse:
        name = self._front.arguments.text("served_model_name")
        model = {
            "id": name,
            "object": "model",
            "created": int(self._front.started_wall),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._front.context_tokens,
        }
        return web.json_response({"object": "list", "data": [model]})

    # -- acting ----------------------------------------------------------------------------

    async def _abort(self, request: web.Request) -> web.StreamResponse:
        body = await _object(request)
        rid = str(body.get("rid") or "")
        if body.get("abort_all"):
            self._engine.abort("")
        elif rid in self._engine.requests:  # an unknown id never reaches the scheduler
            self._engine.abort(rid)
        return web.Response(status=200)

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        mode = (await _object(request)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            return web.json_response({"error": f"Invalid enum value {mode!r}"}, status=400)
        await self._engine.pause(str(mode))
        return _done("Generation paused successfully.")

    async def _continue(self, request: web.Request) -> web.StreamResponse:
        await _object(request)
        self._engine.unpause()
        self._log.main(
            "[continue_generation] torch.cuda.empty_cache() called: "
            "reserved 0.0 MB -> 0.0 MB (freed 0.0 MB)"
        )
        return _done("Generation continued successfully.")

    async def _flush(self, request: web.Request) -> web.StreamResponse:
        self._engine.pump()
        only_waiting = self._engine.paused_mode == "retract" and not self._engine.running
        if self._engine.is_idle or only_waiting:
            return web.Response(text=FLUSHED)
        return web.Response(status=400, text="Flush cache failed.\n")

    async def _freeze_gc(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=200)

    async def _set_internal_state(self, request: web.Request) -> web.StreamResponse:
        wanted = (await _object(request)).get("server_args")
        if not isinstance(wanted, dict):
            text = "Object missing required field `server_args`"
            return web.json_response({"error": text}, status=400)
        self._state.control_replies += 1
        return web.json_response([self._apply(wanted)] * len(self._engine.ranks))

    def _apply(self, wanted: dict[str, Any]) -> bool:
        """Set the live cap; one bad key rejects the whole body."""
        most = self._engine.limits.max_running
        for key, value in wanted.items():
            if key not in LIVE_KEYS:
                self._log.rank(f"Updating {key} is not supported.")
                return False
            if _number(value) is None or not 1 <= (_number(value) or 0) <= most:
                self._log.rank(
                    f"Updating {key} to {value} is rejected because it is out of the valid "
                    f"range [1, {most}]."
                )
                return False
        for value in wanted.values():
            self._engine.set_live_cap(_number(value) or most)
        self._log.rank(f"Config updated via context override: {wanted}")
        return True


async def _object(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    try:
        body = json.loads(raw) if raw else {}
    except ValueError:
        body = {}
    return body if isinstance(body, dict) else {}


def _done(message: str) -> web.Response:
    return web.json_response({"message": message, "status": "ok"})


def _number(value: object) -> int | float | None:
    """Return what SGLang makes of a value: it takes "8", true (1) and 2.5 as they come."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, str) and value.isdigit() else None
