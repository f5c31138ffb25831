"""Takes figures every second: the server's own counters, and kvctl's picture of the same."""

import gzip
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LINE = re.compile(r"^sglang:(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)
_WANTED = {
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "token_usage": "usage",
    "num_retracted_requests_total": "retracted",
}
_SERVER = (
    "state",
    "running",
    "queued",
    "token_usage",
    "generation_tokens_per_s",
    "effective_tokens_per_s",
    "retracted_total",
    "pid",
)
_RUN = ("state", "mode", "target", "auto_target", "in_flight", "done", "tokens", "mean_answer_s")

Row = dict[str, Any]


def scrape(url: str) -> Row:
    """Return the main counters of /metrics, read with a regular expression; {} if it is silent."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError):
        return {}
    found: Row = {"retracted": 0.0}
    for name, labels, value in _LINE.findall(text):
        if name in _WANTED:
            found[_WANTED[name]] = float(value)
        elif name == "realtime_tokens_total" and 'mode="decode"' in labels:
            found["decoded"] = float(value)
        elif name == "realtime_tokens_total" and 'mode="prefill_compute"' in labels:
            found["prefilled"] = float(value)
    return found


def thin(status: Row) -> Row:
    """Return what is kept of one `kvctl watch --json` line."""
    server, run = (status["servers"] or [{}])[0], status["run"]
    device = (status["gpus"]["devices"] or [{}])[0]
    return {
        "wall": status["wall"],
        "verdict": (status["verdict"] or {}).get("word"),
        "gpu_bytes": device.get("memory_used_bytes"),
        "gpu_busy": device.get("utilisation_ratio"),
        **{f"s_{name}": server.get(name) for name in _SERVER},
        **{f"r_{name}": run.get(name) for name in _RUN},
    }


@dataclass(slots=True)
class Measurement:
    """Two streams of samples by wall time."""

    url: str
    watch: list[str]
    """The command line of `kvctl watch --json`."""
    servers: list[Row] = field(default_factory=list)
    kvctl: list[Row] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin both streams."""
        for target in (self._scrape, self._watch):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End both streams."""
        self._ended.set()
        for thread in self._threads:
            thread.join(10)

    def save(self, path: Path) -> None:
        """Write every sample."""
        with gzip.open(path, "wt", encoding="utf-8") as file:
            for kind, rows in (("server", self.servers), ("kvctl", self.kvctl)):
                for row in rows:
                    file.write(json.dumps({"from": kind, **row}) + "\n")

    def _scrape(self) -> None:
        while not self._ended.wait(1.0):
            if row := scrape(self.url):
                self.servers.append({"wall": time.time(), **row})

    def _watch(self) -> None:
        while not self._ended.is_set():
            with subprocess.Popen(self.watch, stdout=subprocess.PIPE, text=True) as watch:
                assert watch.stdout is not None
                for line in watch.stdout:
                    self.kvctl.append(thin(json.loads(line)))
                    if self._ended.is_set():
                        watch.terminate()
                        break
            self._ended.wait(1.0)
