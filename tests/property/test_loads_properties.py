"""No JSON makes the load and server-info readers raise or invent a number."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvctl.core.domain.telemetry.loads import parse_get_load, parse_v1_loads
from kvctl.core.domain.telemetry.server_info import parse_server_info

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "loads",
                    "timestamp",
                    "version",
                    "num_running_reqs",
                    "num_reqs",
                    "num_waiting_reqs",
                    "token_usage",
                    "speculative",
                    "accept_length",
                    "internal_states",
                    "memory_usage",
                    "token_capacity",
                    "max_total_num_tokens",
                    "launch_command",
                    "api_key",
                    "dp_rank",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_gives_counts_from_zero_up_or_none(answer: Any) -> None:
    for reading in (
        parse_v1_loads(answer, 0.0, 0.0, has_metrics=None),
        parse_get_load(answer, 0.0, 0.0, None),
    ):
        for rank in reading.ranks if reading else ():
            values = (rank.running, rank.queued, rank.used_tokens, rank.token_usage)
            assert all(value is None or value >= 0 for value in values)


@given(JSON)
def test_any_json_gives_a_server_description_or_none(answer: Any) -> None:
    info = parse_server_info(answer, 0.0)
    assert info is None or info.pool_tokens is None or info.pool_tokens >= 0
