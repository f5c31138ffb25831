"""What the flags an operator turns take, where only `--help` is there to tell.

argparse prints no types. These names took the same in every version compared (0.4.6.post5, 0.5.2,
0.5.6, 0.5.10, 0.5.15, 0.5.23); a flag that is not here is taken for text, which refuses nothing.
"""

from kvctl.core.domain.presets.flags import FlagKind

_QUANTITIES = "context-length max-prefill-tokens max-total-tokens"
"""Plain integers in older versions: the newer, wider kind refuses nothing that they accept."""

_INTEGERS = """
    tp-size tensor-parallel-size dp-size data-parallel-size pp-size pipeline-parallel-size ep-size
    expert-parallel-size attn-dp-size nnodes node-rank base-gpu-id gpu-id-step port nccl-port
    dist-timeout chunked-prefill-size page-size stream-interval decode-log-interval random-seed
    max-running-requests max-queued-requests prefill-max-requests max-mamba-cache-size
    cuda-graph-max-bs cuda-graph-bs cuda-graph-max-bs-decode cuda-graph-bs-decode
    cuda-graph-max-bs-prefill cuda-graph-bs-prefill torch-compile-max-bs
    num-continuous-decode-steps num-reserved-decode-tokens scheduler-recv-interval
    hicache-size cpu-offload-gb tokenizer-worker-num log-requests-level moe-dense-tp-size
    speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens
    max-lora-rank max-loras-per-batch max-loaded-loras ep-num-redundant-experts
    triton-attention-num-kv-splits pp-max-micro-batch-size disaggregation-bootstrap-port
"""

_NUMBERS = """
    mem-fraction-static schedule-conservativeness hicache-ratio swa-full-tokens-ratio
    mamba-full-memory-ratio watchdog-timeout soft-watchdog-timeout
    speculative-accept-threshold-acc speculative-accept-threshold-single
    tbo-token-distribution-threshold eplb-min-rebalancing-utilization-threshold
"""

_KINDS = {
    **dict.fromkeys(_QUANTITIES.split(), FlagKind.QUANTITY),
    **dict.fromkeys(_INTEGERS.split(), FlagKind.INTEGER),
    **dict.fromkeys(_NUMBERS.split(), FlagKind.NUMBER),
}


def kind_of(*names: str) -> FlagKind:
    """Return what a flag with a value takes, by its names (with dashes); text if not known."""
    return next((_KINDS[name] for name in names if name in _KINDS), FlagKind.TEXT)
