"""SGLang 0.5.23's log lines, written as a server with tensor parallelism writes them.

Source: SGLang 0.5.23 observability, utils/common.py configure_logger; lines seen on real servers.
"""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TextIO

from kvctl.core.clock import Clock
from kvctl.core.sim.model import DecodeTick, PoolEvent, PrefillBatch, Retracted


class ServerLog:
    """Writes stamped lines to stderr, access lines to stdout."""

    def __init__(
        self,
        clock: Clock,
        ranks: int,
        quiet_paths: Sequence[str] = (),
        stream: TextIO | None = None,
        dp_size: int = 1,
    ) -> None:
        """Stamp by `clock`; name the rank where there are several; leave out `quiet_paths`."""
        self._clock = clock
        self._ranks = ranks
        self._dp_size = dp_size
        self._quiet = tuple(quiet_paths)
        self._stream = stream

    def main(self, text: str) -> None:
        """Write a line of the main process."""
        self._write(sys.stderr, f"[{self._stamp()}] {text}\n")

    def rank(self, text: str, number: int = 0) -> None:
        """Write a line of a scheduler."""
        # Source: a part of the prefix stands there only where its size is above 1.
        name = f" DP{number * self._dp_size // self._ranks}" if self._dp_size > 1 else ""
        name += f" TP{number}" if self._ranks > 1 else ""
        self._write(sys.stderr, f"[{self._stamp()}{name}] {text}\n")

    def raw(self, text: str) -> None:
        """Write text without a stamp, such as a progress bar or a traceback."""
        self._write(sys.stderr, text)

    def access(self, peer: str, method: str, path: str, status: int, reason: str) -> None:
        """Write uvicorn's access line."""
        if not path.startswith(self._quiet or "\n"):
            text = f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {reason}'
            self._write(sys.stdout, f"[{self._stamp()}] {text}\n")

    def event(self, event: PoolEvent, dp_rank: int = 0) -> None:
        """Write the line of what a DP rank's first scheduler did, if it has one."""
        number = dp_rank * self._ranks // self._dp_size
        match event:
            case DecodeTick():
                self.rank(decode_line(event), number)
            case PrefillBatch():
                self.rank(prefill_line(event), number)
            case Retracted():
                self.rank(retraction_line(event), number)
            case _:
                pass

    def progress(self, what: str, done: int, total: int, seconds: float) -> None:
        """Write one state of a tqdm bar, carriage return first."""
        share = done / total
        bar = ("#" * int(10 * share)).ljust(10)
        rate = done / seconds if seconds > 0 else 0.0
        left = (total - done) / rate if rate else 0.0
        times = f"{_minutes(seconds)}<{_minutes(left)}, {rate:5.2f}it/s"
        self.raw(f"\r{what}: {share:4.0%}|{bar}| {done}/{total} [{times}]")
        if done == total:
            self.raw("\n")

    def _write(self, default: TextIO, text: str) -> None:
        stream = self._stream or default
        stream.write(text)
        stream.flush()

    def _stamp(self) -> str:
        # SGLang stamps in local time, to the second.
        return datetime.fromtimestamp(self._clock.wall()).strftime("%Y-%m-%d %H:%M:%S")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def decode_line(tick: DecodeTick) -> str:
    """Return the text of a decode line."""
    return (
        f"Decode batch, #running-req: {tick.running}, #token: {tick.tokens}, "
        f"token usage: {tick.usage:.2f}, cuda graph: True, "
        f"gen throughput (token/s): {tick.tokens_per_s:.2f}, #queue-req: {tick.queued}"
    )


def prefill_line(batch: PrefillBatch) -> str:
    """Return the text of a prefill line."""
    rate = batch.new_tokens / batch.seconds if batch.seconds else 0.0
    return (
        f"Prefill batch, #new-seq: {batch.new_seqs}, #new-token: {batch.new_tokens}, "
        f"#cached-token: 0, token usage: {batch.usage:.2f}, #running-req: {batch.running}, "
        f"#queue-req: {batch.queued}, #pending-token: {batch.pending_tokens}, "
        f"cuda graph: True, input throughput (token/s): {rate:.2f}"
    )


def retraction_line(retracted: Retracted) -> str:
    """Return the text of a retraction line."""
    return (
        f"KV cache pool is full. Retract requests. #retracted_reqs: {retracted.requests}, "
        f"#new_tokens_gained: {retracted.tokens_gained}, "
        f"#new_token_ratio: {retracted.ratio_before:.4f} -> {retracted.ratio_after:.4f}"
    )
