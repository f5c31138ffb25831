"""Rules: what is denied, under every name, and why is told."""

import pytest

from kvctl.core.domain.presets.preset import Preset, merge
from kvctl.core.domain.presets.rules import Rule, refusals, refusals_of_argv
from kvctl.core.domain.presets.text import parse_preset

NO_FP8 = Rule("kv-cache-dtype", ("fp8*",), "fp8 KV degrades this model noticeably")


def preset_of(text: str) -> Preset:
    return merge([parse_preset("p", "p.toml", text)])


@pytest.mark.parametrize("value", ["fp8_e4m3", "FP8_E5M2", "float8_e4m3fn", "mxfp8"])
@pytest.mark.parametrize("flag", ["kv-cache-dtype", "kv_cache_dtype", "kv-cache"])
def test_a_denied_value_is_refused_under_every_name(flag: str, value: str) -> None:
    broken = refusals(preset_of(f'[flags]\n{flag} = "{value}"\n'), [NO_FP8])
    assert len(broken) == 1
    assert "degrades this model noticeably" in str(broken[0])
    assert "p.toml:2" in str(broken[0])


@pytest.mark.parametrize("text", ['kv-cache-dtype = "bf16"', "kv-cache-dtype = false", "tp = 8"])
def test_what_is_not_denied_passes(text: str) -> None:
    assert refusals(preset_of(f"[flags]\n{text}\n"), [NO_FP8]) == ()


def test_a_denied_value_inside_a_command_template_is_refused() -> None:
    command = '["bash", "-c", "sglang serve --kv-cache-dtype fp8_e4m3 {sglang_args}"]'
    assert refusals(preset_of(f"[launch]\ncommand = {command}\n"), [NO_FP8])


def test_a_command_line_is_judged_like_a_preset() -> None:
    assert refusals_of_argv(["x", "--kv-cache-dtype=fp8_e5m2"], [NO_FP8])
    assert not refusals_of_argv(["x", "--kv-cache-dtype", "bf16"], [NO_FP8])


def test_a_bare_flag_can_be_denied() -> None:
    rule = Rule("disable-radix-cache", ("true",), "prompts share prefixes")
    assert refusals(preset_of("[flags]\ndisable_radix_cache = true\n"), [rule])


def test_bf16_may_be_written_either_way() -> None:
    rule = Rule("kv-cache-dtype", ("bf16",), "too large")
    assert refusals(preset_of('[flags]\nkv-cache-dtype = "bfloat16"\n'), [rule])


def test_no_rule_refuses_nothing() -> None:
    assert refusals(preset_of('[flags]\nkv-cache-dtype = "fp8_e4m3"\n'), []) == ()
