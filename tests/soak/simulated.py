"""The simulated host of the chaos soak.

kvctld works with a clock of its own, a few times as fast as the host's, so that its back-offs
and watches fit into a round; the server decodes much faster still.
"""

import functools
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.soak.place import SoakPlace

from kvctl.core.cli.demo import end_everything
from kvctl.core.sim.answers import answer_to, ids_of_text
from kvctl.core.sim.scenarios import MISSION

KVCTLD_SPEED, SERVER_SPEED = 4.0, 80.0
ROWS, TOKENS = 150, 1200


def clock(speed: float) -> str:
    """A clock for KVCTL_SIM_CLOCK that begins now."""
    return f"{speed!r},{time.monotonic()!r},{time.time()!r}"


@functools.lru_cache(maxsize=100_000)
def answer_of(ids: tuple[int, ...]) -> tuple[int, ...]:
    """What the simulated model answers when nobody disturbs it."""
    answer = answer_to(ids, MISSION.laws)
    return tuple(answer.output_ids(min(answer.left_tokens, TOKENS)))


class SimPlace(SoakPlace):
    """A kvctld on a simulated host."""

    def prepare(self) -> None:
        """Write the preset and the host's folder."""
        host = self.folder / "host"
        host.mkdir()
        self.daemon_words = ("--simulated", str(host))
        self.variables = {
            "KVCTL_PYTHON": sys.executable,
            "KVCTL_SIM_PORT": str(self.port),
            "KVCTL_SIM_DIR": str(host),
            "KVCTL_SIM_CLOCK": clock(KVCTLD_SPEED),
        }
        self.write_preset(
            'extends = "sim-baseline"\n[flags]\nmem-fraction-static = 0.88\n'
            f'[env]\nKVCTL_SIM_CLOCK = "{clock(SERVER_SPEED)}"\n'
        )

    def write_run(self, name: str, slots: int) -> tuple[Path, dict[str, Path]]:
        """A run over two partitions: short answers of B1, longer and often capped ones of B3."""
        text = f'[run]\nname = "{name}"\noutput = "{self.output / name}"\nconcurrency = {slots}\n'
        text += f'server = "http://127.0.0.1:{self.port}"\non_ceiling = "notify"\nscout = 2\n'
        text += f"[sampling]\nmax_new_tokens = {TOKENS}\ntemperature = 0.7\n"
        files = {}
        for partition in ("B1", "B3"):
            file = files[partition] = self.folder / f"{name}-{partition}.jsonl"
            with file.open("w") as lines:
                for row in range(ROWS):
                    ids = ids_of_text(f"[{partition}] {name} row {row:05d}")
                    print(json.dumps({"id": f"r{row:05d}", "input_ids": ids}), file=lines)
            text += f'[[partition]]\nname = "{partition}"\ninput = "{file}"\n'
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return path, files

    def why_not_right(self, record: Mapping[str, Any]) -> str:
        """Compare an answer with the undisturbed one, token by token."""
        wanted = answer_of(tuple(record["input_ids"]))
        return "" if tuple(record["output_ids"]) == wanted else "other tokens than undisturbed"

    def close(self) -> None:
        """End kvctld and everything that belongs to the simulated host."""
        super().close()
        end_everything(self.folder / "host")
