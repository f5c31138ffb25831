"""Shapes out of config.json, the bytes of a token, and the weights that a config describes."""

import json
from pathlib import Path

import pytest

from kvctl.core.domain.capacity.kv_cell import kv_bytes_per_token, kv_cell, resolved_kv_dtype
from kvctl.core.domain.capacity.model_layers import LayerKind
from kvctl.core.domain.capacity.model_shape import (
    AttentionKind,
    ModelShape,
    ModelShapeUnknown,
    parse_shape,
)
from kvctl.core.domain.capacity.model_weights import (
    WeightPart,
    part_of_tensor,
    rank_weights,
    unsorted_weights,
)
from kvctl.core.domain.capacity.state_pool import slot_bytes
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.presets.serving_flags import Layout, ServingFlags, serving_flags

MODELS = Path(__file__).parents[1] / "data" / "models"
GIB = 1 << 30


def config(name: str) -> dict[str, object]:
    value: dict[str, object] = json.loads((MODELS / f"{name}.json").read_text())
    return value


def shape(name: str) -> ModelShape:
    return parse_shape(config(name))


@pytest.mark.parametrize(
    ("model", "layout", "kv_dtype", "expected"),
    [
        ("llama-3.1-8b", Layout(), "auto", 32 * 8 * 256 * 2),
        ("llama-3.1-8b", Layout(), "fp8_e4m3", 32 * 8 * 256),
        ("llama-3.1-8b", Layout(tp=4), "auto", 32 * 2 * 256 * 2),
        ("llama-3.1-8b", Layout(tp=16), "auto", 32 * 1 * 256 * 2),
        ("llama-3.1-8b", Layout(tp=8, attn_dp=4), "auto", 32 * 4 * 256 * 2),
        ("llama-3.1-8b", Layout(pp=3), "auto", 11 * 8 * 256 * 2),
        ("llama-3.1-8b", Layout(), "mxfp8", 32 * 8 * 256 * (1 + 1 / 32)),
        ("llama-3.1-8b", Layout(), "nvfp4", 32 * 8 * 256 * 9 / 16),
        ("kimi-k2.5", Layout(tp=8), "auto", 576 * 61 * 2),
        ("kimi-k2.5", Layout(tp=8), "fp8_e4m3", 576 * 61),
        ("deepseek-v3", Layout(tp=8, attn_dp=8), "auto", 576 * 61 * 2),
        ("qwen3-moe-30b", Layout(tp=2), "auto", 48 * 2 * 256 * 2),
        ("qwen3-next-80b", Layout(tp=2), "auto", 12 * 1 * 512 * 2),
        ("deepseek-v3.2", Layout(tp=8), "auto", (576 * 2 + 128 + 4) * 61),
        ("deepseek-v3.2", Layout(tp=8), "fp8_e4m3", (512 + 16 + 128 + 128 + 4) * 61),
        ("tiny-llama", Layout(), "float32", 2 * 2 * 64 * 4),
    ],
)
def test_a_tokens_bytes_follow_layers_heads_ranks_and_dtype(
    model: str, layout: Layout, kv_dtype: str, expected: float
) -> None:
    assert kv_bytes_per_token(shape(model), layout, kv_dtype) == expected


def test_sparse_attention_in_fp8_is_sized_without_scales_before_0_5_16() -> None:
    v32 = shape("deepseek-v3.2")
    assert kv_bytes_per_token(v32, Layout(tp=8), "fp8_e4m3", "0.5.10") == (576 + 132) * 61


def test_layers_that_share_an_index_keep_none_of_their_own() -> None:
    shared = parse_shape({**config("deepseek-v3.2"), "index_topk_freq": 4})
    # Layers 0, 1, 5, 9, … 57 compute their own.
    assert len(shared.indexed) == 16
    assert shared.indexed[:4] == (0, 1, 5, 9)


def test_a_sliding_model_counts_its_window_pool_at_the_ratio() -> None:
    cell = kv_cell(shape("gpt-oss-20b"), ServingFlags())
    row = 8 * 128 * 2
    assert (cell.full_bytes, cell.sliding_bytes) == (12 * row, 12 * row)
    assert cell.cell_bytes(0.5) == pytest.approx(12 * row * 1.5)


def test_sliding_layers_of_an_architecture_without_a_second_pool_count_as_full() -> None:
    gemma = parse_shape({**config("gpt-oss-20b"), "architectures": ["Gemma3ForCausalLM"]})
    assert gemma.count(LayerKind.FULL) == 24
    assert gemma.window_tokens is None


def test_a_nested_text_config_is_looked_through_and_marks_the_model_multimodal() -> None:
    kimi = shape("kimi-k2.5")
    assert kimi.attention is AttentionKind.LATENT
    assert len(kimi.layers) == 61
    assert kimi.is_multimodal
    assert not shape("deepseek-v3").is_multimodal


def test_a_gdn_models_state_is_that_of_its_linear_layers_alone() -> None:
    qwen = shape("qwen3-next-80b")
    assert qwen.count(LayerKind.LINEAR) == 36
    conv = (32 * 128 + 2 * 16 * 128) * 3 * 2
    assert slot_bytes(qwen, ServingFlags()) == 36 * (conv + 32 * 128 * 128 * 4)


def test_a_rope_factor_lengthens_the_context_only_without_an_original_length() -> None:
    assert shape("llama-3.1-8b").context_tokens == 131072
    stretched = parse_shape({**config("llama-8b-shape"), "rope_scaling": {"factor": 2.0}})
    assert stretched.context_tokens == 65536


@pytest.mark.parametrize("broken", [{}, {"num_hidden_layers": 4}, {"num_hidden_layers": "many"}])
def test_a_config_without_layers_or_heads_is_refused_in_one_line(
    broken: dict[str, object],
) -> None:
    with pytest.raises(ModelShapeUnknown, match=r"^config.json [^\n]*$"):
        parse_shape(broken)


def test_auto_kv_dtype_is_the_models_own() -> None:
    llama = shape("llama-8b-shape")
    assert resolved_kv_dtype(llama, ServingFlags()) == "bf16"
    assert resolved_kv_dtype(llama, ServingFlags(dtype="float32")) == "float32"
    scaled = parse_shape(
        {**config("llama-8b-shape"), "quantization_config": {"kv_cache_quant_algo": "FP8"}}
    )
    assert resolved_kv_dtype(scaled, ServingFlags()) == "fp8_e4m3"


def test_a_drafts_rows_share_the_pool_from_0_5_14_on() -> None:
    v3 = shape("deepseek-v3")
    new = ServingFlags(version="0.5.23", speculative="EAGLE")
    old = ServingFlags(version="0.5.10", speculative="EAGLE")
    assert kv_cell(v3, new).full_bytes == pytest.approx(576 * 62 * 2)
    assert kv_cell(v3, new).notes
    assert kv_cell(v3, old).full_bytes == 576 * 61 * 2


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("qwen3-moe-30b", 30.5),
        ("qwen3-next-80b", 79.7),
        ("deepseek-v3", 671.0),
        ("kimi-k2.5", 1026.0),
        ("gpt-oss-20b", 20.9),
    ],
)
def test_counted_parameters_agree_with_the_published_ones(model: str, billions: float) -> None:
    plain = {k: v for k, v in config(model).items() if k != "quantization_config"}
    if isinstance(inner := plain.get("text_config"), dict):
        plain["text_config"] = {k: v for k, v in inner.items() if k != "quantization_config"}
    assert estimate_weights(plain).total_bytes / 2e9 == pytest.approx(billions, rel=0.012)


def test_kimis_int4_checkpoint_comes_out_at_595_gb() -> None:
    assert estimate_weights(config("kimi-k2.5")).total_bytes / 1e9 == pytest.approx(595, rel=0.01)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.3.mlp.experts.7.up_proj.weight_packed", WeightPart.EXPERTS),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", WeightPart.DENSE),
        ("model.layers.3.mlp.gate.weight", WeightPart.REPLICATED),
        ("model.layers.3.mlp.gate_proj.weight", WeightPart.DENSE),
        ("model.layers.3.self_attn.q_b_proj.weight", WeightPart.ATTENTION),
        ("model.layers.3.self_attn.q_a_proj.weight", WeightPart.REPLICATED),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", WeightPart.REPLICATED),
        ("model.layers.3.input_layernorm.weight", WeightPart.REPLICATED),
        ("model.layers.61.mlp.experts.0.up_proj.weight", WeightPart.DRAFT),
        ("model.embed_tokens.weight", WeightPart.EMBEDDING),
        ("lm_head.weight", WeightPart.HEAD),
        ("vision_tower.encoder.blocks.30.wqkv.weight", WeightPart.VISION),
        ("mtp.layers.0.mlp.up_proj.weight", WeightPart.DRAFT),
    ],
)
def test_a_tensors_name_says_how_it_is_split(name: str, part: WeightPart) -> None:
    assert part_of_tensor(name, layers=61) is part


def test_attention_weights_are_split_over_attention_ranks_only() -> None:
    weights = estimate_weights(config("deepseek-v3"))
    together = rank_weights(weights, Layout(tp=8)).expected_bytes
    apart = rank_weights(weights, Layout(tp=8, attn_dp=8)).expected_bytes
    attention = weights.of(WeightPart.ATTENTION) * 7 / 8
    embedding = weights.of(WeightPart.EMBEDDING) * 7 / 8
    assert apart - together == pytest.approx(attention + embedding, rel=1e-6)


def test_a_bare_total_is_less_sure_than_sorted_tensors() -> None:
    total = unsorted_weights(100 * GIB, is_quantized=False)
    one, eight = rank_weights(total, Layout()), rank_weights(total, Layout(tp=8))
    assert one.expected_bytes == 100 * GIB
    assert eight.error_bytes / eight.expected_bytes > one.error_bytes / one.expected_bytes


def test_flags_are_understood_in_every_spelling() -> None:
    flags = serving_flags(
        {"tp": 8, "mem-fraction-static": "0.88", "max_total_tokens": "400k", "hicache-size": 48,
         "enable-hierarchical-cache": True, "speculative_algorithm": None},
        "0.5.10",
    )  # fmt: skip
    assert flags.layout == Layout(tp=8)
    assert (flags.mem_fraction, flags.max_total_tokens) == (0.88, 400_000)
    assert (flags.has_hicache, flags.hicache_gb, flags.speculative) == (True, 48.0, None)


def test_dp_is_inside_tp_with_dp_attention_and_beside_it_without() -> None:
    inside = serving_flags({"tp-size": 8, "dp-size": 4, "enable-dp-attention": True}).layout
    beside = serving_flags({"tp-size": 2, "dp-size": 4}).layout
    assert (inside.attn_tp, inside.pools, inside.gpus) == (2, 4, 8)
    assert (beside.attn_tp, beside.pools, beside.gpus) == (2, 4, 8)
    assert (inside.attn_dp, beside.attn_dp) == (4, 1)
