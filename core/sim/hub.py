"""The model of the simulated host as a hub cache holds it: config.json alone, no weights.

It is what kvctl predicts the pool of a preset from, before that preset was ever launched.
Source: the public config.json of Kimi-K2.5, the keys that shape weights and KV.
"""

import json
from pathlib import Path

MODEL = "moonshotai/Kimi-K2.5"
_IN_16_BITS = (
    r"re:.*self_attn.*",
    r"re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
)
_CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    "text_config": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 384,
        "moe_intermediate_size": 2048,
        "intermediate_size": 18432,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_shared_experts": 1,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            "ignore": ["lm_head", *_IN_16_BITS],
        },
    },
}


def write_hub(folder: Path) -> None:
    """Fill a hub cache with one snapshot of the model."""
    snapshot = folder / f"models--{MODEL.replace('/', '--')}" / "snapshots" / "simulated"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(_CONFIG, indent=1), encoding="utf-8")
