"""Flags that some version of SGLang accepted and a later one does not, with what took their place.

Source: the flags of 0.4.6.post5, 0.5.2, 0.5.6, 0.5.10, 0.5.15 and 0.5.23 compared with each other,
and the successors that 0.5.15 itself names for what it deprecates.
"""

from collections.abc import Container

_BECAME = {
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "disable-piecewise-cuda-graph": "cuda-graph-backend-prefill=disabled",
    "enable-breakable-cuda-graph": "cuda-graph-backend-prefill=breakable",
    "enforce-piecewise-cuda-graph": "cuda-graph-backend-prefill=tc_piecewise",
    "piecewise-cuda-graph-compiler": "cuda-graph-tc-compiler",
    "piecewise-cuda-graph-max-tokens": "cuda-graph-max-bs-prefill",
    "piecewise-cuda-graph-tokens": "cuda-graph-bs-prefill",
    "enable-dsa-prefill-context-parallel": "enable-prefill-cp",
    "enable-nsa-prefill-context-parallel": "enable-prefill-cp",
    "enable-prefill-context-parallel": "enable-prefill-cp",
    "dsa-prefill-cp-mode": "cp-strategy",
    "nsa-prefill-cp-mode": "cp-strategy",
    "prefill-cp-mode": "cp-strategy",
    "nsa-decode-backend": "dsa-decode-backend",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
    "max-micro-batch-size": "pp-max-micro-batch-size",
    "speculative-dflash-draft-window-size": "speculative-draft-window-size",
    "stream-output": "incremental-streaming-output",
    "enable-flashinfer-mla": "attention-backend=flashinfer",
    "enable-flashmla": "attention-backend=flashmla",
    "enable-ep-moe": "ep-size",
    "enable-deepep-moe": "moe-a2a-backend=deepep",
    "enable-flashinfer-cutlass-moe": "moe-runner-backend=flashinfer_cutlass",
    "enable-flashinfer-mxfp4-moe": "moe-runner-backend=flashinfer_mxfp4",
    "enable-flashinfer-trtllm-moe": "moe-runner-backend=flashinfer_trtllm",
    "enable-triton-kernel-moe": "moe-runner-backend=triton_kernel",
}

_WITHOUT_SUCCESSOR = """
    collect-tokens-histogram custom-sigquit-handler debug-tensor-dump-inject
    debug-tensor-dump-prefill-only disaggregation-decode-dp disaggregation-decode-tp
    disaggregation-prefill-pp dllm-block-size ds-channel-config-path ds-heavy-channel-num
    ds-heavy-channel-type ds-heavy-token-num ds-sparse-decode-threshold elastic-ep-rejoin
    enable-deepep-waterfill enable-double-sparsity enable-expert-distribution-metrics
    enable-flashinfer-autotune enable-nan-detection enable-piecewise-cuda-graph
    hybrid-kvcache-ratio keep-mm-feature-on-device load-watch-interval mm-max-concurrent-calls
    mm-per-request-timeout multi-item-scoring-delimiter n-share-experts-fusion
    optimistic-prefill-retries pdlb-url prefill-round-robin-balance
    speculative-ngram-branch-length speculative-ngram-max-match-window-size
    speculative-ngram-min-match-window-size speculative-skip-dp-mlp-sync torchao-config
"""
_ENDED = frozenset(_WITHOUT_SUCCESSOR.split())


def what_became_of(name: str, known: Container[str]) -> str | None:
    """Say what to do about a flag of another version; None where it was never one.

    `known` are the names that the installed version accepts.
    """
    successor = _BECAME.get(name)
    if successor is not None and successor.partition("=")[0] in known:
        return f"removed; now {successor.replace('=', ' = ')}"
    if successor is not None or name in _ENDED:
        return "a flag of another version; leave it out"
    return None
