"""Makes KV pools one after another in a process that has imported SGLang once.

    SGLANG_PYTHON tests/gpu/pool_runner.py < JOBS      # a line each: {"log": PATH, "argv": [...]}

Each job is a fork: SGLang's own one-batch benchmark (0.5.23) loads the model and allocates the pool
with the code of a server, prints max_total_num_tokens, and the fork ends there. Its output goes to
the job's log. For CPUs: a GPU context does not survive a fork. Standard library and SGLang only.
"""

import json
import os
import sys
import traceback

from sglang.benchmark import one_batch  # type: ignore[import-not-found]
from sglang.srt.models import registry as registry  # type: ignore[import-not-found]


def leave(*_: object, **__: object) -> None:
    """End the fork: what follows the pool is the benchmark itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def make_pool(log: str, argv: list[str]) -> None:
    """Be the fork of one job; never returns."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    one_batch.prepare_synthetic_inputs_for_latency_test = leave
    sys.argv = ["one_batch", *argv]
    try:
        one_batch.cli_main()
    except BaseException:  # the log tells; the parent goes on with the next job
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def main() -> None:
    """Carry out jobs until the input ends, and say when each has ended."""
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            make_pool(job["log"], job["argv"])
        _, status = os.waitpid(child, 0)
        print(json.dumps({"log": job["log"], "status": status}), flush=True)


if __name__ == "__main__":
    main()
