"""Effective flags of a server: from what they differ, the KV ceiling first, secrets never."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.core.domain.presets.effective_flags import CEILING, effective_flags, is_same
from kvctl.core.domain.presets.flags import FlagCatalogue
from kvctl.core.domain.servers.server import EffectiveFlag, LaunchFlag
from kvctl.core.domain.telemetry.readings import ServerInfo
from kvctl.core.domain.telemetry.server_info import MASK, mask_command, masked, parse_server_info
from kvctl.core.servers.flags.catalogue import from_document

DATA = Path(__file__).parents[1] / "data"
PRESET = (
    LaunchFlag("max-total-tokens", "4096", "preset cpu-tiny"),
    LaunchFlag("dtype", "float32", "preset cpu-tiny"),
    LaunchFlag("chunked-prefill-size", "512", "preset cpu-tiny"),
)


def recorded() -> ServerInfo:
    info = parse_server_info(
        json.loads((DATA / "sglang-0.5.23" / "server_info.json").read_text()), 1.0
    )
    assert info is not None
    return info


def catalogue() -> FlagCatalogue:
    return from_document(json.loads((DATA / "flags" / "0.5.23.json").read_text()))


def by_name(flags: tuple[EffectiveFlag, ...]) -> dict[str, EffectiveFlag]:
    return {flag.name: flag for flag in flags}


def test_a_flag_says_from_what_it_differs() -> None:
    flags = by_name(effective_flags(recorded(), PRESET, catalogue()))
    cap = flags["pp-max-micro-batch-size"]
    assert (cap.value, cap.at_start) == ("2048", "unset")
    assert "run time" in cap.differs
    chunk = flags["chunked-prefill-size"]
    assert chunk.given == "512" and "given" in chunk.differs and chunk.given_by == "preset cpu-tiny"
    pool = flags["max-total-tokens"]
    assert (pool.value, pool.given, pool.default) == ("4096", "4096", "unset")
    assert pool.differs == ("default",)


def test_a_size_that_nobody_gave_is_the_one_the_server_resolved() -> None:
    flags = by_name(effective_flags(recorded(), PRESET, catalogue()))
    limit = flags["max-running-requests"]
    assert (limit.value, limit.at_start) == ("2048", "unset")
    assert limit.differs == ("default", "run time")


def test_a_switch_that_is_off_and_has_no_default_is_at_its_default() -> None:
    flags = by_name(effective_flags(recorded(), PRESET, catalogue()))
    assert "enable-dp-attention" not in flags and "disable-cuda-graph" not in flags


def test_flags_that_move_the_ceiling_come_first_in_the_order_of_their_strength() -> None:
    flags = effective_flags(recorded(), PRESET, catalogue())
    moving = [flag.name for flag in flags if flag.moves_ceiling]
    assert [flag.name for flag in flags][: len(moving)] == moving
    assert moving[:2] == ["mem-fraction-static", "max-total-tokens"]
    assert moving == sorted(moving, key=CEILING.index)


def test_what_is_at_its_default_and_was_not_given_is_left_out() -> None:
    flags = by_name(effective_flags(recorded(), (), catalogue()))
    assert "log-level" not in flags and "schedule-conservativeness" not in flags
    assert len(flags) < 80


def test_without_a_preset_the_servers_own_command_line_tells_what_was_given() -> None:
    flags = by_name(effective_flags(recorded(), (), catalogue()))
    assert flags["attention-backend"].given == "torch_native"
    assert flags["attention-backend"].given_by == "command line"


def test_without_a_catalogue_no_default_is_invented() -> None:
    flags = effective_flags(recorded(), PRESET, None)
    assert all(flag.default is None and "default" not in flag.differs for flag in flags)
    assert {"max-total-tokens", "mem-fraction-static"} <= set(by_name(flags))


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ("0.9", "0.90", True),
        ("on", "True", True),
        ("off", "False", True),
        ("unset", "None", True),
        ("auto", "'auto'", True),
        ("auto", "bf16", False),
        ("4096", "4097", False),
        ("on", "1", False),
    ],
)
def test_values_are_compared_by_meaning(one: str, other: str, wanted: bool) -> None:
    assert is_same(one, other) is wanted


SECRET = "s3cr3t-Value"


@pytest.mark.parametrize(
    "command",
    [
        f"--api-key {SECRET}",
        f"--api-key={SECRET}",
        f"--api {SECRET} --port 3",
        f"--admin-api-key '{SECRET} with words' --tp 2",
        f"--api-key -{SECRET}",
        f"--ssl-keyfile-password {SECRET}",
        f"--hf-token={SECRET}",
        f"--watermark-key {SECRET}",
        f"""--hicache-storage-backend-extra-config '{{"access_key": "{SECRET}"}}'""",
        f"API_KEY={SECRET} python -m sglang.launch_server",
        f"--api-key {SECRET} 'unclosed",
    ],
)
def test_a_secret_of_a_command_line_is_masked_however_it_is_written(command: str) -> None:
    shown = mask_command(command)
    assert SECRET not in shown and MASK in shown


def test_what_is_no_secret_of_a_command_line_stays() -> None:
    command = "--max-total-tokens 4096 --tokenizer-path /models/x --skip-tokenizer-init --port 3"
    assert mask_command(command) == command


def test_secrets_are_masked_in_live_values_in_nested_ones_and_in_what_was_given() -> None:
    body = {
        "api_key": SECRET,
        "hicache_storage_backend_extra_config": f'{{"secret_key": "{SECRET}", "bucket": "b"}}',
        "mm": {"password": SECRET, "size": 5},
        "internal_states": [{"api_key": "other-" + SECRET, "mm": {"password": SECRET + "2"}}],
        "launch_command": f"--api-key {SECRET}",
    }
    info = parse_server_info(body, 1.0)
    assert info is not None
    launched = (LaunchFlag("api-key", SECRET, "preset x"),)
    flags = effective_flags(info, launched, None)
    assert SECRET not in repr(info) + repr(flags)
    assert by_name(flags)["api-key"].value == MASK
    assert masked("max_total_tokens", 4096) == 4096


words = st.lists(
    st.one_of(
        st.sampled_from(["--api-key", "--port", "--api", "--admin-api-key=", "--tp", "-x", "="]),
        st.text(max_size=12),
    ),
    max_size=8,
)


@given(words)
def test_no_command_line_makes_masking_raise(parts: list[str]) -> None:
    mask_command(" ".join(parts))
    mask_command(shlex.join(parts))


@given(st.text(alphabet="abcXYZ019_.~+/", min_size=8, max_size=30))
def test_no_value_after_a_secret_flag_survives(value: str) -> None:
    secret = "Zq" + value
    assert secret not in mask_command(shlex.join(["--port", "1", "--api-key", secret, "--tp", "2"]))


@given(
    st.dictionaries(
        st.sampled_from(["api_key", "max_total_tokens", "x", "internal_states", "launch_command"]),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
            max_leaves=6,
        ),
    )
)
def test_no_answer_makes_flags_raise(body: dict[str, object]) -> None:
    info = parse_server_info(body, 1.0)
    if info is not None:
        for flag in effective_flags(info, PRESET, None):
            assert isinstance(flag.value, str) and flag.value
