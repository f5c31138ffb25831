"""History on disk: bounded, coarser with age, kept over kvctld's death, unharmed by torn files."""

import math
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvctl.core.controller.history import (
    STEPS,
    History,
    history_since,
    read_points,
    shown_series,
    shown_values,
)

START = 1_764_000_000.0


def filled(folder: Path, seconds: int, begin: float = START) -> History:
    history = History(folder)
    for second in range(seconds):
        history.record(begin + second, {"running": float(second)})
    return history


def test_a_sparkline_has_ten_second_means_and_a_gap_stays_a_gap(tmp_path: Path) -> None:
    history = History(tmp_path)
    for second in (*range(10), *range(30, 45)):
        history.record(START + second, {"running": float(second)})
    values = history.series(START + 45)["running"].values
    assert values == (4.5, None, None, 34.5, 41.5)


def test_a_sparkline_reaches_back_ten_minutes_and_no_further(tmp_path: Path) -> None:
    history = filled(tmp_path, 2000)
    series = history.series(START + 2000)["running"]
    assert len(series.values) <= 60 and series.step_s == 10
    first = series.values[0]
    assert first is not None and first >= 1390


def test_an_unknown_figure_is_never_a_zero(tmp_path: Path) -> None:
    history = History(tmp_path)
    for second in range(21):
        history.record(START + second, {"pool": None if second < 10 else 0.5})
    assert history.series(START + 20)["pool"].values == (None, 0.5)
    history.flush()
    assert read_points(tmp_path / STEPS[0].file_name)[0][0].values == {"pool": None}


def test_history_survives_kvctld_with_a_gap_where_none_ran(tmp_path: Path) -> None:
    filled(tmp_path, 61).flush()
    again = History(tmp_path)
    for second in range(120, 131):
        again.record(START + second, {"running": float(second)})
    values = again.series(START + 130)["running"].values
    assert values[0] == 4.5 and values[5] == 54.5
    assert values[6:12] == (None,) * 6 and values[12] == 124.5


def test_a_kill_costs_at_most_the_last_seconds(tmp_path: Path) -> None:
    filled(tmp_path, 100)  # never flushed
    kept = read_points(tmp_path / STEPS[0].file_name)[0]
    assert kept[-1].wall >= START + 90


def test_memory_and_files_are_bounded(tmp_path: Path) -> None:
    history = filled(tmp_path, 5000)
    history.flush()
    for step in STEPS:
        points, lines = read_points(tmp_path / step.file_name)
        assert len(points) <= lines <= 2 * step.length + 10
    assert len(History(tmp_path).series(START + 5000)["running"].values) <= 60


def test_what_is_told_since_is_as_fine_as_it_was_kept_and_in_order(tmp_path: Path) -> None:
    history = History(tmp_path)
    end = 60_000
    for second in (*range(0, end - 2000, 10), *range(end - 2000, end)):
        history.record(START + second, {"running": float(second)})
    history.flush()
    told = list(history_since(tmp_path, START))
    walls = [point.wall for _, point in told]
    assert walls == sorted(set(walls))
    assert [step for step, _ in told] == sorted((step for step, _ in told), reverse=True)
    assert {step for step, _ in told} == {1.0, 10.0, 60.0}
    assert walls[0] == START and walls[-1] >= START + end - 10
    late = START + end - 1000
    assert all(point.wall >= late for _, point in history_since(tmp_path, late))


def test_a_clock_that_was_set_back_does_not_stop_the_history(tmp_path: Path) -> None:
    history = filled(tmp_path, 300)
    for second in range(60):
        history.record(START + 100 + second, {"running": 7.0})
    history.flush()
    points = read_points(tmp_path / STEPS[0].file_name)[0]
    assert points[-1].values == {"running": 7.0} and points[-1].wall == START + 158
    assert history.series(START + 160)["running"].values[-1] == 7.0


def test_a_torn_line_costs_itself_only_and_not_the_next(tmp_path: Path) -> None:
    history = filled(tmp_path, 50)
    path = tmp_path / STEPS[0].file_name
    with path.open("ab") as file:
        file.write(b'{"wall": 17640')
    for second in range(50, 70):
        history.record(START + second, {"running": float(second)})
    history.flush()
    walls = [p.wall - START for p in read_points(path)[0]]
    assert walls == [float(n) for n in range(69)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=300), at=st.integers(0, 4000))
def test_no_damage_of_a_file_raises_or_disorders_it(tmp_path: Path, junk: bytes, at: int) -> None:
    path = tmp_path / STEPS[0].file_name
    path.unlink(missing_ok=True)
    filled(tmp_path, 60).flush()
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + junk + whole[at + len(junk) // 2 :])
    points, _ = read_points(path)
    walls = [point.wall for point in points]
    assert walls == sorted(set(walls))
    shown = [v for point in points for v in point.values.values()]
    assert all(value is None or math.isfinite(value) for value in shown)
    History(tmp_path).series(START + 60)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    history = filled(tmp_path / "missing", 100)
    assert history.series(START + 100)["running"].values[-1] is not None


def test_one_servers_figures_are_shown_by_their_own_names_beside_the_runs() -> None:
    values = {"main/pool": 0.9, "b/pool": 0.1, "a/b/pool": 0.2, "effective": 600.0}
    assert shown_values(values, "main") == {"pool": 0.9, "effective": 600.0}
    assert shown_values(values, "a/b") == {"pool": 0.2, "effective": 600.0}
    assert shown_values(values, None) == {"effective": 600.0}


def test_the_series_of_other_servers_keep_their_full_names(tmp_path: Path) -> None:
    history = History(tmp_path)
    for second in range(21):
        history.record(START + second, {"main/pool": 0.9, "b/pool": 0.1, "effective": 600.0})
    series = shown_series(history.series(START + 20), "main")
    assert set(series) == {"pool", "main/pool", "b/pool", "effective"}
    assert series["pool"].values == (0.9, 0.9)
