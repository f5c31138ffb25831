"""Writes the model that the test engine serves: Llama-shaped, tiny, random, always the same bytes.

Standard library only, so a test can make the folder (or just the tokenizer) without the engine.

- A token is a byte and its id is the byte's value: `list(text.encode())` tokenizes. Ids 256 to 261
  are the special tokens; the rest of the vocabulary of 320 is unused.
- Weights are random with a fixed seed, so greedy output varies and hangs on the whole prefix: a
  test such as "a continued response equals the uninterrupted one" can fail. (SGLang's
  `--load-format dummy` repeats two tokens for ever.) The text is noise, often not valid UTF-8.
- To compare outputs token by token, serve it with `--dtype float32` (launch.py does): bfloat16
  rounds so coarsely that decode and a prefill of the same tokens soon disagree.
- Output rows of ids >= 256 are zero, so at temperature 0 neither a special token nor EOS is ever
  the best choice: a response has exactly max_new_tokens unless the request sets a stop. At
  temperature 1 and above EOS remains possible, and rare.
"""

import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

CONTEXT_TOKENS = 8192
VOCABULARY = 320
BYTES = 256
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
BOS_ID, EOS_ID = 256, 257
HIDDEN, INNER, LAYERS, HEADS = 64, 128, 2, 2
SEED = 2025
# Above 1, so that attention and MLP outweigh the last token's embedding and history matters.
PROJECTION_GAIN = 1.7
_EXACT_MATCH = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a ByteLevel vocabulary, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = (chr(BYTES + n) for n in range(BYTES))
    return [chr(byte) if byte in printable else next(spare) for byte in range(BYTES)]


def tokenizer_json() -> dict[str, object]:
    """A BPE tokenizer without merges in the format of the `tokenizers` package."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    added = [
        {"id": BYTES + n, "content": token, "special": True, **_EXACT_MATCH}
        for n, token in enumerate(SPECIAL_TOKENS)
    ]
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def config_json() -> dict[str, object]:
    """The model's shape, as transformers names it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }


def tokenizer_config_json() -> dict[str, object]:
    """How transformers loads the tokenizer, and the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "model_max_length": CONTEXT_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _bfloat16(value: float) -> bytes:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    nearest_even = 0x7FFF + (bits >> 16 & 1)
    return struct.pack("<H", (bits + nearest_even) >> 16)


def _random_matrix(source: random.Random, rows: int, columns: int, deviation: float) -> bytes:
    return b"".join(_bfloat16(source.gauss(0, deviation)) for _ in range(rows * columns))


def _projections() -> Iterator[tuple[str, int, int]]:
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        yield f"self_attn.{name}", HIDDEN, HIDDEN
    yield "mlp.gate_proj", INNER, HIDDEN
    yield "mlp.up_proj", INNER, HIDDEN
    yield "mlp.down_proj", HIDDEN, INNER


def tensors() -> dict[str, tuple[list[int], bytes]]:
    """Every parameter by name: its shape and its bfloat16 values, little-endian, row by row."""
    source = random.Random(SEED)
    ones = ([HIDDEN], _bfloat16(1.0) * HIDDEN)
    output_rows = _random_matrix(source, BYTES, HIDDEN, 1.0)
    never_chosen = bytes(2 * (VOCABULARY - BYTES) * HIDDEN)
    made = {
        "model.embed_tokens.weight": (
            [VOCABULARY, HIDDEN],
            _random_matrix(source, VOCABULARY, HIDDEN, 1.0),
        ),
        "lm_head.weight": ([VOCABULARY, HIDDEN], output_rows + never_chosen),
        "model.norm.weight": ones,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        made[f"{prefix}input_layernorm.weight"] = ones
        made[f"{prefix}post_attention_layernorm.weight"] = ones
        for name, rows, columns in _projections():
            deviation = PROJECTION_GAIN / columns**0.5
            values = _random_matrix(source, rows, columns, deviation)
            made[f"{prefix}{name}.weight"] = ([rows, columns], values)
    return made


def safetensors(parameters: dict[str, tuple[list[int], bytes]]) -> bytes:
    """The parameters as one safetensors file: header length, JSON header, values."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, values) in parameters.items():
        end = offset + len(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(values for _, values in parameters.values())
    return struct.pack("<Q", len(text)) + text + body


def write_tiny_model(folder: Path) -> None:
    """Fill the folder with config, tokenizer, chat template and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": config_json(),
        "generation_config.json": {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID},
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": tokenizer_config_json(),
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors()))


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]))
