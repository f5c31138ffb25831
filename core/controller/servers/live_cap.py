"""The live cap of running requests: set on a serving engine, remembered, and put back at the end.

The second lever beside the client's slots, for load that is not ours: it limits what the server
runs, whoever sent it. It only stops admission; nothing that runs is cut.

Source: SGLang /set_internal_state, `pp_max_micro_batch_size`; per DP rank.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvctl.core.controller.commands import CapServer, Outcome
from kvctl.core.controller.servers.desk import ServerDesk
from kvctl.core.controller.servers.freezing import is_frozen
from kvctl.core.controller.servers.records import same_url
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.ports import ProbeFailed

_OVER = (RunState.FINISHED, RunState.FAILED)
_NOT_DONE = frozenset({"unsupported", "absent", "refused", "unauthorized", "http", "rejected"})
"""Causes that say for certain that the cap was not changed."""


@dataclass(slots=True, eq=False)
class LiveCaps:
    """Sets and lifts the caps of the watched servers."""

    servers: ServerDesk
    _run_urls: tuple[str, ...] = ()
    """Servers of the run that is open; its end lifts their caps."""
    _is_unhappy: set[str] = field(default_factory=set)
    """Servers whose cap could not be lifted; told once."""

    async def set(self, command: CapServer, id: str) -> Outcome:
        """Cap the running requests of a server, or put its own cap back."""
        watch = self.servers.by_name(command.server)
        if command.running is None:
            return await self._lift_asked(watch, id)
        self._refuse(watch)
        cap = await self._cap(watch, command.running)
        view = watch.view()
        queued = view.decode.queued.value
        name, before = watch.record.name, watch.record.cap_before
        each = " on each DP rank" if (view.dp_size or 1) > 1 else ""
        waits = f"; {queued:.0f} wait in the server" if queued else ""
        said = f"{name} runs at most {cap} requests{each} (its own cap: {before}){waits}"
        self.servers.feed.emit("cap", f"{said}; what runs above it ends normally", id)
        return Outcome(0, said, (f"read back from the server: {cap}",))

    def take_up(self) -> None:
        """Tell of the caps that an earlier kvctld set and could not lift."""
        for watch in self._capped():
            name, own = watch.record.name, watch.record.cap_before
            said = f"{name} still has the cap that kvctl set (its own: {own})"
            self.servers.feed.emit("cap", f"{said}; the end of the run or of kvctld lifts it")

    async def tick(self, run: Run | None) -> None:
        """Lift the caps of a run's servers once that run is over."""
        is_open = run is not None and run.state not in _OVER
        if is_open and run is not None:
            self._run_urls = run.servers
            return
        urls, self._run_urls = self._run_urls, ()
        for watch in list(self._capped()):
            is_of_run = any(same_url(watch.record.url, url) for url in urls)
            if is_of_run and not await self._lift(watch, "the run is over"):
                self._run_urls = (*self._run_urls, watch.record.url)  # tried again

    async def close(self) -> None:
        """Lift every cap: kvctld leaves."""
        for watch in list(self._capped()):
            await self._lift(watch, "kvctld leaves")

    def _capped(self) -> Iterable[ServerWatch]:
        return (w for w in self.servers.watches.values() if w.record.cap_before is not None)

    def _refuse(self, watch: ServerWatch) -> None:
        name = watch.record.name
        if not watch.state.is_ready:
            raise CommandRefused(f"{name} is {watch.state.value}: a cap is set while it serves")
        if is_frozen(watch):
            raise CommandRefused(f"{name} is frozen: `kvctl run resume` first")

    async def _cap(self, watch: ServerWatch, running: int) -> int:
        """Set a cap and return what the server says it is now; its own is remembered first."""
        record = watch.record
        own = record.cap_before
        if own is None:
            await watch.learn()
            own = watch.info.live_cap if watch.info is not None else None
            if own is None:
                raise CommandRefused(self._no_lever(watch, "it tells no pp_max_micro_batch_size"))
        if not 1 <= running <= own:
            raise UsageError(f"the cap of {record.name} is 1 to {own}: {running}")
        was_capped, record.cap_before = record.cap_before, own
        self.servers.remember(record)  # first: a kvctld that dies now must still know its own cap
        try:
            cap = await watch.engine.set_live_cap(running)
        except ProbeFailed as failure:
            if failure.cause not in _NOT_DONE:
                raise KvctlError(
                    f"{record.name} did not answer ({failure.detail}): whether it took the cap is"
                    " not known; `kvctl server cap off` puts its own back"
                ) from None
            record.cap_before = was_capped
            self.servers.save()
            raise CommandRefused(self._no_lever(watch, failure.detail)) from None
        await watch.learn()
        if cap != running:
            raise KvctlError(f"{record.name} was told {running} and says {cap}: see its log")
        return cap

    def _no_lever(self, watch: ServerWatch, why: str) -> str:
        return (
            f"{watch.record.name} takes no live cap: {why};"
            " limit kvctl's own requests with `kvctl run throttle N`"
        )

    async def _lift_asked(self, watch: ServerWatch, id: str) -> Outcome:
        name, own = watch.record.name, watch.record.cap_before
        if own is None:
            return Outcome(0, f"{name} has no cap of kvctl's")
        if (problem := await self._put_back(watch)) is not None:
            raise KvctlError(problem)
        self.servers.feed.emit("cap", f"{name} has its own cap of {own} again", id)
        return Outcome(0, f"{name} has its own cap of {own} again", (f"read back: {own}",))

    async def _lift(self, watch: ServerWatch, why: str) -> bool:
        name, own = watch.record.name, watch.record.cap_before
        if (problem := await self._put_back(watch)) is None:
            self.servers.feed.emit("cap", f"{why}: {name} has its own cap of {own} again")
            self._is_unhappy.discard(name)
        elif name not in self._is_unhappy:
            self._is_unhappy.add(name)
            self.servers.feed.emit("cap", f"{why}, but {problem}")
        return problem is None

    async def _put_back(self, watch: ServerWatch) -> str | None:
        """Set the server's own cap again; return why that was not possible."""
        record = watch.record
        own = record.cap_before
        if own is not None and watch.is_alive() is not False and not watch.is_lost:
            try:
                now = await watch.engine.set_live_cap(own)
            except ProbeFailed as failure:
                return (
                    f"{record.name} still has kvctl's cap, not its own of {own}: {failure.detail}"
                )
            if now != own:
                return f"{record.name} was told its own cap of {own} and says {now}"
        record.cap_before = None
        self.servers.save()
        await watch.learn()
        return None
