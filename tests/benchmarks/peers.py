"""Other clients on the benchmark's server, each as it comes and not streaming.

bench_serving runs from the test engine's interpreter. aiperf runs where KVCTL_AIPERF names its
command (`pip install aiperf` into a venv of its own); it speaks no /generate, so its template
endpoint does, and it takes token counts from the server: counting them itself costs it more than
half of its rate. All its processes share the client's core.
"""

import json
import os
import re
import resource
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.measured import Measured
from tests.engine.launch import engine_env, engine_home


@dataclass(frozen=True, slots=True)
class Load:
    """What every client does."""

    slots: int
    """Requests in flight."""
    prompt_tokens: int
    output_tokens: int
    core: int
    """Of the client."""


def bench_serving(url: str, count: int, load: Load) -> Measured:
    """Run sglang's bench_serving and read what it says."""
    home = engine_home()
    command = [str(home.python), "-m"]
    command += ["sglang.benchmark.serving", "--backend", "sglang", "--base-url", url]
    command += ["--dataset-name", "random-ids", "--num-prompts", str(count), "--disable-stream"]
    command += ["--random-input-len", str(load.prompt_tokens)]
    command += ["--random-output-len", str(load.output_tokens), "--random-range-ratio", "1.0"]
    command += ["--max-concurrency", str(load.slots), "--disable-tqdm"]
    command += ["--model", str(home.model), "--tokenizer", str(home.model), "--seed", "1"]
    command += ["--warmup-requests", "1", "--tokenize-prompt"]
    with tempfile.TemporaryDirectory() as standins:
        # It imports this package for data sets that are not used here; the engine goes without.
        (Path(standins) / "datasets.py").write_text("load_dataset = None\n")
        env = engine_env()
        env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{standins}"
        said, cpu_s = _run(command, load.core, env, Path(standins))
    found = dict(re.findall(r"^([A-Z][\w ()/]+?):\s+([\d.]+)", said, re.MULTILINE))
    assert int(found["Successful requests"]) == count, said[-3000:]
    return Measured(count, float(found["Benchmark duration (s)"]), cpu_s)


_BODY = """{"text": {{ texts|first|tojson }}, "sampling_params": {"max_new_tokens": %d}}"""


def aiperf(url: str, count: int, load: Load) -> Measured:
    """Run aiperf and read what it writes."""
    home = engine_home()
    command = [os.environ["KVCTL_AIPERF"], "profile", "--model", "tiny", "--url", url]
    command += ["--tokenizer", str(home.model), "--use-server-token-count"]
    command += ["--custom-endpoint", "/generate", "--endpoint-type", "template"]
    command += ["--concurrency", str(load.slots), "--request-count", str(count)]
    command += ["--isl", str(load.prompt_tokens), "--isl-stddev", "0", "--random-seed", "1"]
    command += ["--ui", "none", "--artifact-dir", "out"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "body.j2").write_text(_BODY % load.output_tokens)
        command += ["--extra-inputs", f"payload_template:{folder}/body.j2", "response_field:text"]
        _, cpu_s = _run(command, load.core, os.environ, folder)
        found = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == count, found
    return Measured(count, found["benchmark_duration"]["avg"], cpu_s)


def _run(command: list[str], core: int, env: Mapping[str, str], folder: Path) -> tuple[str, float]:
    """Run a client on its core; return what it printed and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pinned = ["taskset", "-c", str(core), *command]
    done = subprocess.run(pinned, capture_output=True, text=True, env=env, cwd=folder, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


PEERS: Mapping[str, Callable[[str, int, Load], Measured]] = {
    "bench_serving": bench_serving,
    "aiperf": aiperf,
}
