"""Writes a model folder for `--load-format dummy`: config and tokenizer, no weights.

    python -m tests.gpu.model_folder OUT [LAYERS]

The shape is Llama-3.1-8B's: 32 layers unless told otherwise, 8 KV heads of 128: 128 KiB of KV
a token in bf16.
"""

import json
import sys
from pathlib import Path

from tests.engine.tiny_model import (
    BOS_ID,
    EOS_ID,
    SPECIAL_TOKENS,
    tokenizer_config_json,
    tokenizer_json,
)

VOCABULARY = 128_256
CONTEXT_TOKENS = 32_768
LAYERS = 32


def config_json(layers: int) -> dict[str, object]:
    """The model's shape, as transformers names it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }


def named_tokenizer() -> dict[str, object]:
    """The tests' byte tokenizer with a name for every id: dummy weights give any of them."""
    document = tokenizer_json()
    model = document["model"]
    assert isinstance(model, dict)
    first_free = len(model["vocab"]) + len(SPECIAL_TOKENS)
    model["vocab"] |= {f"\u0120w{number}": number for number in range(first_free, VOCABULARY)}
    return document


def write_model(folder: Path, layers: int = LAYERS) -> None:
    """Fill the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": config_json(layers),
        "generation_config.json": {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID},
        "tokenizer.json": named_tokenizer(),
        "tokenizer_config.json": tokenizer_config_json() | {"model_max_length": CONTEXT_TOKENS},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else LAYERS)
