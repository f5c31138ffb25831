"""Starts SGLang with one (model shape, flags) after another and records the pool that each got.

    python -m tests.gpu.pools cpu|gpu --work DIR --out FILE [--within-s 290] [--runner]
                                      [--only NAME...]

Dummy weights, no graphs; a start is ended (KILL, the whole session) as soon as its log has told
the pool. With --runner the pools are made in one process that imports SGLang once (pool_runner.py,
for CPUs), which takes seconds a pool; most of a minute is the wait until what the pool before it
took is free again (SETTLE_WITHIN_S).

FILE gets one JSON document: the host, and of each start its config.json, its flags, the free memory
just before it, and the lines of its log that tell of memory. A start for which no time is left is
not begun. $SGLANG_PYTHON is the interpreter that has SGLang ($SGLANG_PYTHONPATH added); without it
the engine of tests/engine is taken. Nothing of kvctl is used: its predictions are held against
this file afterwards (tests/benchmarks/capacity.py).
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.launch import engine_env, engine_home
from tests.engine.tiny_model import BOS_ID, EOS_ID, tokenizer_config_json
from tests.gpu.model_folder import CONTEXT_TOKENS, VOCABULARY, named_tokenizer
from tests.gpu.pool_shapes import SETS, SHAPES, Combination

POOL = "max_total_num_tokens="
TELLS = re.compile(
    r"Load weight (begin|end)|KV Cache is allocated|KV size|Memory pool end|max_total_num_tokens="
)
CHOSEN = re.compile(r"mem_fraction_static=([0-9.]+)")
VERSION = "import sglang.version as v; print(v.__version__)"
NEEDED_S = 45.0
"""A start that would have less than this left is not begun."""
SETTLE_WITHIN_S = 60.0
"""Linux keeps pages that a process freed on lists of each CPU for about half a minute: they count
as taken, and yet the next start is served from them without the free memory falling."""
SETTLED_MIB = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """What the device (or the CPU's host) has, in MiB."""

    total: float
    free: float


def read_memory(device: str) -> Memory:
    """Read the first GPU through nvidia-smi, or the host's memory."""
    if device == "cpu":
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(rows[name].split()[0]) / 1024 for name in ("MemTotal", "MemAvailable"))
        return Memory(total, free)
    words = ["nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    first = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    all_of_it, used = (float(word) for word in first.split(","))
    return Memory(all_of_it, all_of_it - used)


def environment() -> dict[str, str]:
    """Return the server's environment."""
    if "SGLANG_PYTHON" not in os.environ:
        return engine_env()
    paths = [os.environ.get("SGLANG_PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def interpreter() -> str:
    """Return the interpreter that has SGLang."""
    return os.environ.get("SGLANG_PYTHON") or str(engine_home().python)


def write_model(folder: Path, config: dict[str, Any]) -> None:
    """Fill a model folder: config and tokenizer, no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID},
        "tokenizer.json": named_tokenizer(),
        "tokenizer_config.json": tokenizer_config_json() | {"model_max_length": CONTEXT_TOKENS},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def full_config(shape: str) -> dict[str, Any]:
    """Return a shape's config.json."""
    common = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT_TOKENS}
    return {**SHAPES[shape], **common, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}


def flag_words(model: Path, combination: Combination) -> list[str]:
    """Return the flags of a start."""
    words = ["--model-path", str(model), "--load-format", "dummy", "--disable-cuda-graph"]
    for name, value in combination.flags.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


class Servers:
    """Makes each pool by a whole server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def make(self, log: Path, flags: list[str], until: float) -> None:
        """Start a server up to the line with the pool, then end its session."""
        self._port += 1
        words = [interpreter(), "-m", "sglang.launch_server", *flags, "--port", str(self._port)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                words,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            while process.poll() is None and time.monotonic() < until:
                if POOL in log.read_text(errors="replace"):
                    break
                time.sleep(0.2)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Nothing is left."""


class Runner:
    """Makes each pool by a fork of one process that has imported SGLang."""

    def __init__(self) -> None:
        words = [interpreter(), str(Path(__file__).with_name("pool_runner.py"))]
        self._process = subprocess.Popen(
            words,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self._answer()

    def make(self, log: Path, flags: list[str], until: float) -> None:
        """Hand the job over and wait for its end."""
        assert self._process.stdin is not None
        log.unlink(missing_ok=True)
        self._process.stdin.write(json.dumps({"log": str(log), "argv": flags}) + "\n")
        self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            sys.exit(f"the runner ended: {self._process.wait()}")


def start(
    combination: Combination, work: Path, maker: Servers | Runner, until: float
) -> dict[str, Any]:
    """Make one pool; return what was seen."""
    config, model = full_config(combination.shape), work / combination.shape
    write_model(model, config)
    before = read_memory(combination.flags.get("device", "cuda"))
    log, began = work / f"{combination.name}.log", time.monotonic()
    maker.make(log, flag_words(model, combination), until)
    lines = log.read_text(errors="replace").splitlines()
    chosen = next((found[1] for line in lines if (found := CHOSEN.search(line))), None)
    given = combination.flags.get("mem_fraction_static")
    told = [line for line in lines if TELLS.search(line)]
    row = {
        "name": combination.name,
        "shape": combination.shape,
        "config": config,
        "flags": combination.flags,
        "mem_fraction_static": given if chosen is None else float(chosen),
        "total_mib": before.total,
        "free_before_mib": round(before.free, 1),
        "log": told,
        "took_s": round(time.monotonic() - began, 1),
    }
    if not any(POOL in line for line in told):
        row["failed"] = lines[-5:]
    return row


def settle(device: str, idle_mib: float) -> float:
    """Wait until as much memory is free as on the idle host; return what is free, in MiB."""
    until = time.monotonic() + SETTLE_WITHIN_S
    while (free := read_memory(device).free) < idle_mib - SETTLED_MIB:
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return free


def main(words: list[str]) -> int:
    """Run the combinations that fit into the time; 0 when each began and told its pool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--only", nargs="+", metavar="NAME", default=())
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a .json file, or its folder")
    parser.add_argument("--port", type=int, default=30700)
    parser.add_argument("--runner", action="store_true", help="one process for all; CPUs only")
    parser.add_argument("--within-s", type=float, default=290.0)
    given = parser.parse_args(words)
    out = given.out if given.out.suffix == ".json" else given.out / f"pools-{given.set}.json"
    chosen = [c for c in SETS[given.set] if not given.only or c.name in given.only]
    until = time.monotonic() + given.within_s
    asked = subprocess.run(
        [interpreter(), "-c", VERSION],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = {
        "version": asked.stdout.split()[-1],
        "host": platform.machine() if given.set == "cpu" else gpu_name(),
        "by": "one-batch benchmark" if given.runner else "server",
        "starts": [],
    }
    maker = Runner() if given.runner else Servers(given.port)
    idle_mib = 0.0
    needed_s = NEEDED_S / 3 if given.runner else NEEDED_S
    for number, combination in enumerate(chosen):
        if until - time.monotonic() < needed_s:
            report["not_begun"] = [c.name for c in chosen[number:]]
            break
        idle_mib = max(idle_mib, settle(combination.flags.get("device", "cuda"), idle_mib))
        report["idle_mib"] = round(idle_mib, 1)
        row = start(combination, given.work, maker, until)
        report["starts"].append(row)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(row["name"], row["took_s"], (row.get("failed") or row["log"])[-1:], flush=True)
    maker.close()
    is_whole = "not_begun" not in report and not any("failed" in r for r in report["starts"])
    return 0 if is_whole else 1


def gpu_name() -> str:
    """Return the first GPU's name."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
