"""The real CPU engine under the chaos soak: greedy answers in float32, the same every time."""

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.engine.launch import engine_home
from tests.soak.place import SoakPlace

PROMPTS = Path(__file__).parents[1] / "data" / "prompts"
INPUTS = {"B2": "B2-code.prompts.jsonl", "B3": "B3-math.messages.jsonl"}
TOKENS = 100


class EnginePlace(SoakPlace):
    """A kvctld over SGLang on this host's CPU."""

    def prepare(self) -> None:
        """Write the preset; its answers become known with the first run."""
        self.variables = {
            **engine_home().variables(),
            "KVCTL_ENGINE_PORT": str(self.port),
            "HOME": str(self.folder),
        }
        self.write_preset('extends = "cpu-tiny"\n')
        self.answers: dict[tuple[str, str], list[int]] = {}
        self.pids: set[int] = set()

    def write_run(self, name: str, slots: int) -> tuple[Path, dict[str, Path]]:
        """A run over 100 prompts of B2 and B3."""
        text = f'[run]\nname = "{name}"\noutput = "{self.output / name}"\nconcurrency = {slots}\n'
        text += f'server = "http://127.0.0.1:{self.port}"\non_ceiling = "notify"\nscout = 2\n'
        text += f'tokenizer = "{engine_home().model}"\n'
        text += f"[sampling]\nmax_new_tokens = {TOKENS}\ntemperature = 0.0\n"
        files = {partition: PROMPTS / file for partition, file in INPUTS.items()}
        for partition, file in files.items():
            text += f'[[partition]]\nname = "{partition}"\ninput = "{file}"\n'
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return path, files

    def learn(self, output: Path) -> None:
        """Take the answers of a run that nothing was done to as the right ones."""
        for line in (output / "raw_responses.jsonl").read_text().splitlines():
            record = json.loads(line)
            self.answers[record["partition"], record["id"]] = record["output_ids"]

    def why_not_right(self, record: Mapping[str, Any]) -> str:
        """Compare an answer with the undisturbed one, token by token."""
        wanted = self.answers.get((record["partition"], record["id"]))
        is_same = wanted is None or wanted == record["output_ids"]
        return "" if is_same else "other tokens than undisturbed"

    def server_pid(self) -> int:
        """The server's main process, remembered so that all of it can be ended."""
        pid = super().server_pid()
        self.pids.add(pid)
        return pid

    def close(self) -> None:
        """End kvctld and the engine's process groups."""
        with suppress(Exception):
            self.server_pid()
        super().close()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
