"""Launches folded from the ledger's lines, and the windows that are quoted of them."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest

from kvctl.core.domain.launches.launch import (
    POINTS_KEPT,
    LaunchRecord,
    best_points,
    find_launches,
    fold_line,
    observed_of,
    with_point,
)
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.units import GIB

BEGUN = {"event": "begun", "id": "a", "preset": "p", "wall": 5.0, "argv": ["python", "-m"]}
MEASURED = {
    "event": "measured",
    "id": "a",
    "model": "/models/kimi",
    "flags": [["tp-size", 8], ["mem-fraction-static", 0.88], ["kv-cache-dtype", "auto"]],
    "version": "0.5.10",
    "pool_tokens": 159_277,
    "before_bytes": 94.0 * GIB,
    "stages": [["weights", 370.5]],
    "gpus": [["0", 91 * GIB]],
}


def point(began_wall: float, window_s: float, *, steady: bool = True, name: str = "B2"
          ) -> OperatingPoint:  # fmt: skip
    return OperatingPoint(name, "p", 38, 8, 0.93, 640, 631, window_s, steady, began_wall=began_wall)


def folded(*lines: Mapping[str, object]) -> LaunchRecord:
    launches: dict[str, LaunchRecord] = {}
    for line in lines:
        fold_line(launches, line)
    return launches["a"]


def test_a_launch_knows_what_it_was_what_it_got_and_how_far_the_prediction_was() -> None:
    predicted = {"event": "predicted", "id": "a", "predicted": [1.5e5, 1.6e5, 1.7e5],
                 "predicted_by": "baseline (x)"}  # fmt: skip
    launch = folded(BEGUN, predicted, MEASURED)
    assert launch.serving.layout.tp == 8
    assert launch.serving.mem_fraction == 0.88
    assert launch.stages == (("weights", 370.5),)
    assert launch.prediction_error == pytest.approx(160_000 / 159_277 - 1)
    observed = observed_of(launch)
    assert observed is not None
    assert (observed.pool_tokens, observed.before_bytes) == (159_277, 94.0 * GIB)
    assert "p (a)" in observed.label


def test_a_line_that_tells_less_takes_nothing_away() -> None:
    ready = {"event": "ready", "id": "a", "ready_after_s": 620.0, "pool_tokens": None}
    launch = folded(BEGUN, MEASURED, ready)
    assert (launch.pool_tokens, launch.ready_after_s) == (159_277, 620.0)


@pytest.mark.parametrize(
    "line",
    [
        {"event": "measured", "id": "a", "flags": 7},
        {"event": "measured", "id": "a", "flags": [["one"]]},
        {"event": "predicted", "id": "a", "predicted": [1, 2]},
        {"event": "predicted", "id": "a", "predicted": "many"},
        {"event": "point", "id": "a", "point": {"partition": "B2"}},
        {"event": "point", "id": "a"},
        {"event": "future", "id": "a", "wall": 1.0},
        {"event": "ended", "id": 7},
        {"id": "b", "event": "point", "point": {}},
    ],
)
def test_a_line_that_does_not_fit_costs_no_launch(line: dict[str, object]) -> None:
    assert folded(BEGUN, line) == folded(BEGUN)


def test_a_later_state_of_a_window_takes_the_place_of_the_earlier() -> None:
    early, late, other = point(100, 60), point(100, 180), point(400, 60)
    launch = folded(
        BEGUN,
        *({"event": "point", "id": "a", "point": asdict(p)} for p in (early, other, late)),
    )
    assert [p.window_s for p in launch.points] == [180, 60]


def test_points_are_bounded_and_the_long_steady_ones_stay() -> None:
    launch = folded(BEGUN)
    launch = with_point(launch, point(0, 5000))
    for number in range(3 * POINTS_KEPT):
        launch = with_point(launch, point(10 + number, 40 + number, steady=number % 2 == 0))
    assert len(launch.points) == POINTS_KEPT
    assert launch.points[0].window_s == 5000
    assert all(p.steady for p in launch.points)


def test_of_each_partition_the_longest_steady_window_is_quoted() -> None:
    points = (point(0, 500, steady=False), point(1, 90), point(2, 60), point(3, 20, name="B3"))
    launch = replace(folded(BEGUN), points=points)
    assert [(p.partition, p.window_s) for p in best_points(launch)] == [("B2", 90), ("B3", 20)]


def test_a_name_finds_a_launch_by_its_id_or_all_of_a_preset() -> None:
    first, second = folded(BEGUN), replace(folded(BEGUN), id="b")
    other = replace(first, id="c", preset="q")
    assert find_launches([first, second, other], "p") == [first, second]
    assert find_launches([first, second, other], "c") == [other]
    assert find_launches([first, other], None) == [first, other]
    assert find_launches([first], "nobody") == []


def test_without_resolved_flags_a_launch_teaches_nothing() -> None:
    assert observed_of(folded(BEGUN)) is None
