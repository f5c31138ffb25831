"""Servers that come to the open run, and servers that leave it, while it goes on."""

from dataclasses import dataclass

from kvctl.core.controller.commands import ChangeRunServers, Outcome, WaitHow
from kvctl.core.controller.runs.desk import RunDesk
from kvctl.core.controller.runs.opening import server_url
from kvctl.core.controller.runs.words import told_harvest
from kvctl.core.domain.errors import UsageError
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.opening.run_file import load_run

_KEEP = {WaitHow.DRAIN: None, WaitHow.HARVEST: True, WaitHow.ABANDON: False}


@dataclass(frozen=True, slots=True)
class RunServers:
    """Carries out `kvctl run servers`."""

    desk: RunDesk

    async def change(self, command: ChangeRunServers, id: str) -> Outcome:
        """Add first, then remove: the run always has a server."""
        if command.how not in _KEEP:
            raise UsageError("a server that leaves cannot be frozen: drain, harvest or abandon")
        driver = await self.desk.opened()
        said = [self._add(driver, name) for name in command.add]
        for name in command.remove:
            said.append(await self._remove(driver, name, command.how))
        if said:
            driver.keep_servers(load_run(driver.spec.path).servers)
        text = "; ".join(said) or "servers of the run: " + ", ".join(driver.spec.servers)
        if said:
            self.desk.feed.emit("servers", text, id)
        return Outcome(0, text, tuple(driver.spec.servers) if said else ())

    def _add(self, driver: RunDriver, name: str) -> str:
        url = server_url(name, driver.spec, self.desk.servers)
        self.desk.servers.watch_url(url)
        url = driver.add_server(self.desk.generator(url))
        self.desk.steer().follow_servers()
        return f"{url} serves the run as soon as it answers"

    async def _remove(self, driver: RunDriver, name: str, how: WaitHow) -> str:
        url = server_url(name, driver.spec, self.desk.servers)
        report = await driver.remove_server(url, keep=_KEEP[how])
        self.desk.steer().follow_servers()
        tail = "all in flight have ended" if how is WaitHow.DRAIN else told_harvest(report)
        return f"{url} serves the run no more: {tail}"
