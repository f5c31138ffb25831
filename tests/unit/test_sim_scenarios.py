"""Every named scenario meets its published operating point, and lengths follow from prompts."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvctl
from kvctl.core.clock import ManualClock
from kvctl.core.domain.capacity.kv_cell import kv_cell
from kvctl.core.domain.presets.serving_flags import Layout, ServingFlags
from kvctl.core.servers.model_folder import find_model_folder, read_model_folder
from kvctl.core.sim.answers import EOS_ID, LengthLaw, answer_to, ids_of_text
from kvctl.core.sim.closed_loop import ClosedLoopResult, in_weighted_order, measure, run_closed_loop
from kvctl.core.sim.dataset import write_run
from kvctl.core.sim.host import prepare_demo, scenario_names
from kvctl.core.sim.memory import MIB, plan_rank
from kvctl.core.sim.scenarios import MISSION, SCENARIOS, Scenario, prompts_of

LAWS = {"B2": LengthLaw(4_100.0, 1.0), "B3": LengthLaw(1_500.0, 0.9)}
PUBLISHED = [scenario for scenario in SCENARIOS.values() if scenario.published]


def measured(scenario: Scenario) -> ClosedLoopResult:
    return measure(run_closed_loop(scenario, scenario.window[1]), *scenario.window)


def test_there_is_one_scenario_a_published_point_and_the_mission_is_the_default() -> None:
    assert len(PUBLISHED) == 5
    assert scenario_names()[0] == "mission"
    assert set(scenario_names()) == set(SCENARIOS)


@pytest.mark.parametrize("scenario", PUBLISHED, ids=lambda scenario: str(scenario.name))
def test_the_scenario_meets_its_published_point(scenario: Scenario) -> None:
    point, seen = scenario.published, measured(scenario)
    assert point is not None
    assert seen.running == pytest.approx(point.running, rel=0.10)
    assert seen.generation_tokens_per_s == pytest.approx(point.generation_tokens_per_s, rel=0.10)
    assert abs(seen.queued - point.queued) <= max(5.0, 0.10 * point.queued)
    if point.token_usage is None:  # noted as "full"
        assert seen.token_usage > 0.88
        assert seen.peak_usage > 0.99
    else:
        assert seen.token_usage == pytest.approx(point.token_usage, rel=0.10)


def test_the_burst_point_is_the_early_window_in_which_usage_still_rises() -> None:
    scenario = SCENARIOS["fp8-376k-burst"]
    samples = run_closed_loop(scenario, 900.0)
    early, middle, late = (measure(samples, at, at + 120.0).token_usage for at in (60, 300, 700))
    assert early < middle < late


def test_the_mission_meets_the_ceiling_early_and_b2_has_minutes_of_steady_load() -> None:
    samples = run_closed_loop(MISSION)
    ceiling = next(sample.at for sample in samples if sample.usage > 0.97)
    assert ceiling < 200.0
    sent = next(sample.at for sample in samples if sample.unsent["B2"] == 0)
    steady = measure(samples, 360.0, sent)
    assert steady.window_s > 300.0
    assert 35.0 < steady.running < 46.0
    assert steady.token_usage > 0.88
    assert 100 * 20 <= samples[-1].at <= 150 * 20  # real seconds at --speed 20
    assert samples[-1].finished == sum(plan.prompts for plan in MISSION.partitions)


def test_b2_answers_have_the_mission_s_mean_length() -> None:
    means = {}
    for plan in MISSION.partitions:
        lengths = [
            min(plan.max_new_tokens, answer_to(prompt.input_ids, MISSION.laws).left_tokens)
            for prompt in prompts_of(MISSION, plan)
        ]
        means[plan.name] = sum(lengths) / len(lengths)
    assert means["B2"] == pytest.approx(4_100.0, rel=0.03)
    assert all(means[name] == pytest.approx(1_500.0, rel=0.25) for name in means if name > "B2")


@given(
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=60),
    share=st.floats(0.0, 0.99),
)
@settings(max_examples=100, deadline=None)
def test_prompt_and_partial_lead_to_the_rest_of_the_same_answer(
    prompt: list[int], share: float
) -> None:
    head = ids_of_text("[B3] ") + prompt
    whole = answer_to(head, LAWS)
    ids = whole.output_ids(whole.left_tokens)
    assert ids[-1] == EOS_ID
    assert EOS_ID not in ids[:-1]
    cut = int(share * (len(ids) - 1))
    rest = answer_to(head + ids[:cut], LAWS)
    assert ids[:cut] + rest.output_ids(rest.left_tokens) == ids


def test_an_answer_that_went_on_past_eos_can_be_continued_as_well() -> None:
    head = ids_of_text("[B3] go on")
    whole = answer_to(head, LAWS)
    ids = whole.output_ids(whole.left_tokens + 100)
    rest = answer_to(head + ids[:-40], LAWS)
    assert rest.left_tokens <= 0
    assert ids[:-40] + rest.output_ids(40) == ids


def test_the_marker_at_the_head_of_the_prompt_chooses_the_length_law() -> None:
    def mean_of(marker: str) -> float:
        draws = [answer_to(ids_of_text(f"{marker} {n}"), LAWS).left_tokens for n in range(400)]
        return sum(draws) / len(draws)

    assert mean_of("[B2]") == pytest.approx(4_100.0, rel=0.15)
    assert mean_of("[B3]") == pytest.approx(1_500.0, rel=0.15)
    assert mean_of("none") == pytest.approx(1_500.0, rel=0.15)


def test_weighted_order_yields_every_prompt_once_and_the_heavy_partition_first() -> None:
    order = [prompt.id for _, prompt in in_weighted_order(MISSION)]
    assert len(order) == len(set(order)) == sum(plan.prompts for plan in MISSION.partitions)
    assert sum(1 for rid in order[:150] if rid.startswith("B2")) > 120


@pytest.mark.parametrize(
    ("fraction", "dtype", "tokens", "headroom"),
    [
        (0.85, "auto", 116_171, 8.30),
        (0.88, "bf16", 159_277, 5.47),
        (0.90, "fp8_e4m3", 376_029, 3.5),
    ],
)
def test_flags_make_the_published_pools_and_headroom(
    fraction: float, dtype: str, tokens: int, headroom: float
) -> None:
    memory = plan_rank(fraction, dtype, 8, None)
    assert memory.pool_tokens == tokens
    assert memory.after_graphs == pytest.approx(headroom, abs=0.05)
    assert memory.used_bytes(memory.after_graphs) < 97_887 * MIB


def test_max_total_tokens_caps_the_pool_and_a_taken_gpu_shrinks_it() -> None:
    assert plan_rank(0.88, "auto", 8, 50_000).pool_tokens == 50_000
    assert plan_rank(0.88, "auto", 8, None, 93_699 * MIB).pool_tokens < 0


def test_a_written_run_names_prompts_that_are_there(tmp_path: Path) -> None:
    path = write_run(tmp_path, MISSION)
    run = tomllib.loads(path.read_text("utf-8"))
    assert [part["name"] for part in run["partition"]] == ["B1", "B2", "B3", "B4", "B5", "B6", "B7"]
    for part, plan in zip(run["partition"], MISSION.partitions, strict=True):
        lines = (tmp_path / part["input"][0]).read_text("utf-8").splitlines()
        assert len(lines) == plan.prompts


def test_the_same_scenario_is_written_bit_for_bit_again(tmp_path: Path) -> None:
    first, again = write_run(tmp_path / "a", MISSION), write_run(tmp_path / "b", MISSION)
    assert first.read_bytes() == again.read_bytes()
    one = (tmp_path / "a/prompts/B2.jsonl").read_bytes()
    assert one == (tmp_path / "b/prompts/B2.jsonl").read_bytes()


def test_a_demo_carries_the_rule_against_fp8_except_where_it_replays_fp8(tmp_path: Path) -> None:
    bf16 = prepare_demo(tmp_path / "bf16", "mission", 20.0, ManualClock())
    fp8 = prepare_demo(tmp_path / "fp8", "fp8-376k-steady", 20.0, ManualClock())
    rules = tomllib.loads((bf16.config_dir / "config.toml").read_text("utf-8"))["rule"]
    assert rules[0]["deny"] == ["fp8*"]
    assert "rule" not in tomllib.loads((fp8.config_dir / "config.toml").read_text("utf-8"))
    preset = tomllib.loads((bf16.config_dir / "presets/demo.toml").read_text("utf-8"))
    assert preset["flags"]["mem-fraction-static"] == 0.88


@pytest.mark.parametrize(
    "preset", sorted((Path(kvctl.__file__).parent / "presets").glob("sim-*.toml"))
)
def test_the_demos_hub_cache_has_the_model_of_every_simulated_preset(
    preset: Path, tmp_path: Path
) -> None:
    """What a restart with each would bring is predicted from it, before the first launch."""
    host = prepare_demo(tmp_path, "mission", 20.0, ManualClock())
    name = tomllib.loads(preset.read_text("utf-8"))["launch"]["model-path"]
    folder = read_model_folder(find_model_folder(name, host.environment))
    flags = ServingFlags(layout=Layout(tp=8), kv_dtype="bf16")
    assert kv_cell(folder.shape, flags).cell_bytes(flags.sliding_ratio) == 70_272
    assert folder.shards == 0 and folder.weights.is_quantized
