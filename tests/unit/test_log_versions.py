"""Every shape of decode, prefill, retraction, start-up and failure lines from 0.4.0 to 0.5.23."""

import pytest

from kvctl.core.domain.logs.lines import LogKind
from kvctl.core.domain.logs.scan import parse_line

STAMP = "[2026-11-02 09:30:00 TP0] "

DECODE_SHAPES = {
    "0.4.0": "Decode batch. #running-req: 8, #token: 4096, token usage: 0.10, "
    "gen throughput (token/s): 812.30, #queue-req: 3",
    "0.4.3 spec": "Decode batch. #running-req: 8, #token: 4096, token usage: 0.10, "
    "accept len: 2.31, gen throughput (token/s): 812.30, #queue-req: 3",
    "0.4.8 PD": "Decode batch. #running-req: 8, #token: 4096, token usage: 0.10, "
    "pre-allocated usage: 0.02, #retracted-req: 0, cuda graph: True, "
    "gen throughput (token/s): 812.30, #queue-req: 3",
    "0.5.1": "Decode batch. #running-req: 8, #token: 4096, token usage: 0.10, cuda graph: True, "
    "gen throughput (token/s): 812.30, #queue-req: 3, ",
    "0.5.4": "Decode batch [123], #running-req: 8, #token: 4096, token usage: 0.10, "
    "cuda graph: True, gen throughput (token/s): 812.30, #queue-req: 3, ",
    "0.5.23": "Decode batch, #running-req: 8, #token: 4096, token usage: 0.10, cpu graph: False, "
    "gen throughput (token/s): 812.30, #queue-req: 3, fwd occupancy: 91.20%, "
    "fwd+idle occupancy: 91.20%",
    "0.5.23 spec": "Decode batch, #running-req: 8, #token: 4096, token usage: 0.10, "
    "accept len: 2.31, accept rate: 0.58, cap len: 3, block accept len: 2.0, cuda graph: True, "
    "gen throughput (token/s): 812.30, #queue-req: 3",
    "0.4.10 SWA": "Decode batch. #running-req: 8, #full token: 4096, full token usage: 0.10, "
    "#swa token: 24, swa token usage: 0.05, cuda graph: True, gen throughput (token/s): 812.30, "
    "#queue-req: 3",
    "0.5.10 SWA and mamba": "Decode batch, #running-req: 8, #full token: 4096, "
    "full token usage: 0.10, #swa token: 24, swa token usage: 0.05, mamba num: 4, "
    "mamba usage: 0.02, cuda graph: True, gen throughput (token/s): 812.30, #queue-req: 3",
}


@pytest.mark.parametrize("line", DECODE_SHAPES.values(), ids=DECODE_SHAPES)
def test_a_decode_line_gives_the_same_values_in_every_version(line: str) -> None:
    record = parse_line(STAMP + line)
    assert record.kind is LogKind.DECODE
    names = ("running", "tokens", "token_usage", "generation_tokens_per_s", "queued")
    assert [record.number_of(name) for name in names] == [8, 4096, 0.10, 812.30, 3]


PREFILL_SHAPES = {
    "0.4.0": "Prefill batch. #new-seq: 4, #new-token: 2048, #cached-token: 512, "
    "cache hit rate: 20.00%, token usage: 0.05, #running-req: 8, #queue-req: 3",
    "0.5.5": "Prefill batch, #new-seq: 4, #new-token: 2048, #cached-token: 512, "
    "token usage: 0.05, #running-req: 8, #queue-req: 3, ",
    "0.5.23": "Prefill batch, #new-seq: 4, #new-token: 2048, #cached-token: 512, "
    "token usage: 0.05, #running-req: 8, #queue-req: 3, #pending-token: 6144, cuda graph: False, "
    "input throughput (token/s): 9000.00",
    "0.5.3 PD": "Prefill batch. #new-seq: 4, #new-token: 2048, #cached-token: 512, "
    "token usage: 0.05, #running-req: 8, #queue-req: 3, #prealloc-req: 0, #inflight-req: 1, ",
}


@pytest.mark.parametrize("line", PREFILL_SHAPES.values(), ids=PREFILL_SHAPES)
def test_a_prefill_line_gives_the_same_values_in_every_version(line: str) -> None:
    record = parse_line(STAMP + line)
    assert record.kind is LogKind.PREFILL
    names = ("new_seq", "new_tokens", "cached_tokens", "token_usage", "running", "queued")
    assert [record.number_of(name) for name in names] == [4, 2048, 512, 0.05, 8, 3]


@pytest.mark.parametrize(
    ("message", "stage", "edge"),
    [
        ("server_args=ServerArgs(model_path='/m', mem_fraction_static=0.8)", "process", "begin"),
        ("Init torch distributed begin.", "distributed", "begin"),
        ("Init parallel ends. elapsed=0.03 s", "distributed", "end"),
        ("Load weight begin. avail mem=78.59 GB", "weights", "begin"),
        (
            "Load weight end. type=M, avail mem=63.49 GB, mem usage=15.10 GB.",
            "weights",
            "end",
        ),
        (
            "KV Cache is allocated. #tokens: 400000, K size: 24.41 GB, V size: 24.41 GB",
            "kv_pool",
            "begin",
        ),
        ("Memory pool end. avail mem=13.21 GB", "kv_pool", "end"),
        (
            "Capture cuda graph begin. This can take up to several minutes. avail mem=13.2 GB",
            "graphs",
            "begin",
        ),
        (
            "Capture target decode CUDA graph end. elapsed=12.34 s",
            "graphs",
            "end",
        ),
        ("Capture piecewise CUDA graph begin. avail mem=13.2 GB", "graphs", "begin"),
        (
            "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
            "warmup",
            "begin",
        ),
    ],
)
def test_a_start_up_line_tells_its_stage(message: str, stage: str, edge: str) -> None:
    record = parse_line(STAMP + message)
    assert (record.kind, record.word_of("stage"), record.word_of("edge")) == (
        LogKind.STAGE,
        stage,
        edge,
    )


def test_the_summary_line_gives_pool_and_limits() -> None:
    record = parse_line(
        STAMP + "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=2048, context_len=131072, available_gpu_mem=10.90 GB"
    )
    assert record.number_of("pool_tokens") == 400000
    assert record.number_of("max_running") == 2048
    assert record.number_of("available_gb") == 10.90


def test_a_progress_bar_of_shards_gives_its_last_state() -> None:
    bar = (
        "Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]\r"
        "Loading safetensors checkpoint shards:  75% Completed | 3/4 [00:09<00:03,  3.1s/it]\r"
    )
    record = parse_line(bar)
    assert record.word_of("stage") == "weights"
    assert record.number_of("shards_done") == 3
    assert record.number_of("progress_ratio") == 0.75


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Scheduler hit an exception: Traceback (most recent call last):", "scheduler_exception"),
        ("DetokenizerManager hit an exception: Traceback", "process_exception"),
        ("Received sigquit from a child process. It usually means the child failed.", "sigquit"),
        ("SIGQUIT received. signum=3, frame=None. It usually means one child failed.", "sigquit"),
        ("Watchdog timeout (self.watchdog_timeout=300)", "watchdog"),
        ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog"),
        ("Scheduler watchdog timeout (self.watchdog_timeout=3, self.soft=True)", "watchdog_soft"),
        ("Subprocess scheduler_0 (pid=123) crashed with exit code -6. Triggering", "crashed"),
        ("Subprocess scheduler_0 (pid=123) crashed with exit code -9. Triggering", "killed"),
        (
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit "
            "code is -9 (SIGKILL), a common cause is the OS OOM killer.",
            "killed",
        ),
        ("RuntimeError: Rank 0 scheduler died during initialization (exit code: 1).", "crashed"),
        ("Rank 0 scheduler is dead. Please check if there are relevant logs.", "crashed"),
        ("Exit code: -9", "killed"),
        ("EOFError", "pipe_closed"),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "oom_start",
        ),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-"
            "static=0.5",
            "oom_start",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.30 GiB.", "oom"),
        ("Exception: Capture cuda graph failed: CUDA out of memory.", "oom_graphs"),
        ("Exception: Capture cuda graph failed: invalid argument", "graph_capture"),
        ("Prefill out of memory. Try to lower your batch size.", "oom"),
        (
            "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied",
            "memory_unbalanced",
        ),
        ("ERROR:    [Errno 98] error while attempting to bind on address", "port_in_use"),
        ("RuntimeError: Port is already in use.", "port_in_use"),
        ("launch_server.py: error: unrecognized arguments: --reasoning_parser x", "bad_flag"),
        ("sglang serve: error: ambiguous option: --disable-c could match", "bad_flag"),
        ("OSError: Repo id must be in the form 'repo_name'", "model_missing"),
        ("OSError: /models/x does not appear to have a file named config.json.", "model_missing"),
        (
            "[rank1]:[E1102 ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout",
            "nccl",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:29, unhandled cuda error",
            "nccl",
        ),
        ("CUDA error: an illegal memory access was encountered", "cuda"),
        ("ValueError: Not enough host memory available. Requesting 9 GB but only 3", "host_memory"),
        (
            "Health check failed. Server couldn't get a response from detokenizer",
            "health_check",
        ),
        ("Initialization failed. warmup error: x", "warmup_failed"),
    ],
)
def test_a_failure_line_has_its_class(message: str, kind: str) -> None:
    record = parse_line(STAMP + message)
    assert (record.kind, record.word_of("class")) == (LogKind.FAILURE, kind)


@pytest.mark.parametrize(
    "message",
    [
        "Ignore import error when loading sglang.srt.models.grok: No module named 'x'",
        "UserWarning: Triton is not supported on current platform, roll back to CPU.",
        "[rank0]: Warning: WARNING: destroy_process_group() was not called ProcessGroupNCCL.cpp",
        "[http_server] Error: Either text, input_ids or input_embeds should be provided.",
    ],
)
def test_a_harmless_line_is_no_failure(message: str) -> None:
    assert parse_line(STAMP + message).kind is LogKind.UNRECOGNISED


def test_draining_tells_how_many_requests_are_left() -> None:
    record = parse_line(STAMP + "Gracefully exiting... Remaining number of requests 4. Remaining")
    assert (record.kind, record.number_of("remaining")) == (LogKind.DRAINING, 4)


def test_a_stamp_with_milliseconds_and_a_ray_prefix_are_read() -> None:
    record = parse_line("(Worker pid=7) [2026-11-02 09:30:00.250 DP1 PP0 TP3] Load weight begin.")
    assert record.rank == "DP1 PP0 TP3"
    assert record.wall is not None and record.wall % 60 == 0.25
