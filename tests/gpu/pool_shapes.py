"""The (model shape, flag) combinations of pools.py: small dummy models, one flag set a start.

Ordered so that what is cut off by a time limit matters least: every shape starts once before any
starts again under other flags.
"""

from dataclasses import dataclass, field
from typing import Any

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "initializer_range": 0.02,
    "use_cache": True,
}
_LATENT: dict[str, Any] = {
    **_LLAMA,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "routed_scaling_factor": 1.0,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "deepseek_yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
    },
}


def _heads(layers: int, hidden: int, inner: int, heads: tuple[int, int, int]) -> dict[str, Any]:
    """Return a model of `layers` with (attention heads, KV heads, head size)."""
    return {
        **_LLAMA,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
    }


def _latent(layers: int, hidden: int, inner: int, ranks: tuple[int, int, int]) -> dict[str, Any]:
    """Return an MLA model with (attention heads, kv_lora_rank, qk_rope_head_dim)."""
    return {
        **_LATENT,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": ranks[0],
        "num_key_value_heads": ranks[0],
        "kv_lora_rank": ranks[1],
        "qk_rope_head_dim": ranks[2],
        "qk_nope_head_dim": ranks[2] * 2,
        "v_head_dim": ranks[2] * 2,
        "n_routed_experts": 8,
        "moe_intermediate_size": inner // 8,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "gqa-8": _heads(8, 512, 1024, (8, 2, 64)),
    "mha-6": _heads(6, 768, 2048, (12, 12, 64)),
    "gqa-24": _heads(24, 512, 1024, (16, 4, 32)),
    "gqa-4-wide": _heads(4, 512, 1024, (4, 1, 128)),
    "mla-3": _latent(3, 256, 512, (4, 128, 32)),
    "mla-8": _latent(8, 512, 1024, (8, 512, 64)),
    "llama-8b-4-layers": _heads(4, 4096, 14336, (32, 8, 128)),
    "llama-8b-12-layers": _heads(12, 4096, 14336, (32, 8, 128)),
    "mha-8": _heads(8, 4096, 11008, (32, 32, 128)),
    "mla-6-v2-lite": _latent(6, 2048, 10944, (16, 512, 64)),
}
"""By name; the last four are for GPUs."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One start."""

    name: str
    shape: str
    flags: dict[str, Any] = field(default_factory=dict)
    """SGLang's, spelt with underscores."""


def _cpu(name: str, shape: str, **flags: object) -> Combination:
    own = {"device": "cpu", "attention_backend": "torch_native", "dtype": "bfloat16"}
    return Combination(name, shape, {**own, **flags})


def _gpu(name: str, shape: str, **flags: object) -> Combination:
    return Combination(name, shape, {"attention_backend": "triton", **flags})


CPU = (
    _cpu("gqa8-bf16-20", "gqa-8", mem_fraction_static=0.2),
    _cpu("mla3-bf16-20", "mla-3", mem_fraction_static=0.2),
    _cpu("wide-bf16-15", "gqa-4-wide", mem_fraction_static=0.15),
    _cpu("mha6-bf16-20", "mha-6", mem_fraction_static=0.2),
    _cpu("gqa24-bf16-15", "gqa-24", mem_fraction_static=0.15),
    _cpu("gqa8-bf16-10", "gqa-8", mem_fraction_static=0.1),
    _cpu("mla8-bf16-15", "mla-8", mem_fraction_static=0.15),
    _cpu("mla3-bf16-15-page32", "mla-3", mem_fraction_static=0.15, page_size=32),
    _cpu("gqa24-bf16-25", "gqa-24", mem_fraction_static=0.25),
    _cpu("wide-bf16-25", "gqa-4-wide", mem_fraction_static=0.25),
    _cpu("mla8-bf16-25", "mla-8", mem_fraction_static=0.25),
    _cpu("mha6-bf16-15-page64", "mha-6", mem_fraction_static=0.15, page_size=64),
    _cpu("mha6-f32-20", "mha-6", mem_fraction_static=0.2, dtype="float32"),
    _cpu("gqa24-f32-20", "gqa-24", mem_fraction_static=0.2, dtype="float32"),
    _cpu("gqa8-bf16-50", "gqa-8", mem_fraction_static=0.5),
    _cpu("gqa8-bf16-35", "gqa-8", mem_fraction_static=0.35),
    _cpu("mla3-bf16-50", "mla-3", mem_fraction_static=0.5),
    _cpu("mla3-bf16-35-page32", "mla-3", mem_fraction_static=0.35, page_size=32),
    _cpu("mha6-bf16-50", "mha-6", mem_fraction_static=0.5),
    _cpu("mha6-bf16-35-page64", "mha-6", mem_fraction_static=0.35, page_size=64),
    _cpu("gqa24-bf16-50", "gqa-24", mem_fraction_static=0.5),
    _cpu("gqa24-bf16-35", "gqa-24", mem_fraction_static=0.35),
    _cpu("gqa24-f32-35", "gqa-24", mem_fraction_static=0.35, dtype="float32"),
    _cpu("wide-bf16-50", "gqa-4-wide", mem_fraction_static=0.5),
    _cpu("wide-bf16-35", "gqa-4-wide", mem_fraction_static=0.35),
    _cpu("mla8-bf16-50", "mla-8", mem_fraction_static=0.5),
    _cpu("mla8-bf16-35", "mla-8", mem_fraction_static=0.35),
)
"""No chosen fraction here: on a CPU the free memory moves with the host's other processes. Nor fp8:
SGLang 0.5.23 refuses it on a CPU for MLA, and for heads without Intel AMX."""
GPU = (
    _gpu("llama4-bf16-50", "llama-8b-4-layers", mem_fraction_static=0.5),
    _gpu("mla6-bf16-60", "mla-6-v2-lite", mem_fraction_static=0.6),
    _gpu("llama4-fp8-85", "llama-8b-4-layers", mem_fraction_static=0.85, kv_cache_dtype="fp8_e4m3"),
    _gpu("llama12-bf16-chosen", "llama-8b-12-layers"),
    _gpu("mha8-bf16-70", "mha-8", mem_fraction_static=0.7),
    _gpu("mla6-fp8-80", "mla-6-v2-lite", mem_fraction_static=0.8, kv_cache_dtype="fp8_e4m3"),
    _gpu(
        "llama12-fp8-60", "llama-8b-12-layers", mem_fraction_static=0.6, kv_cache_dtype="fp8_e5m2"
    ),
    _gpu("mha8-bf16-40-page64", "mha-8", mem_fraction_static=0.4, page_size=64),
    _gpu("mla6-bf16-30", "mla-6-v2-lite", mem_fraction_static=0.3),
)
SETS = {"cpu": CPU, "gpu": GPU}
