"""`kvctl plan`: what each preset would bring, as text and as a document."""

import json

from tests.cli.conftest import Kvctl

from kvctl.core.daemon.wire import DaemonInfo


def rows(out: str) -> dict[str, str]:
    table = out.split("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: " ".join(line.split()) for line in table}


def test_presets_stand_side_by_side_with_pool_ceiling_fit_and_rule(
    kvctl: Kvctl, kvctld: DaemonInfo
) -> None:
    out = kvctl("plan").out
    head = out.splitlines()[0]
    assert "B2 at 4.1K" in head
    assert "B3 at 1.5K" in head
    found = rows(out)
    assert list(found) == ["baseline", "hicache-bf16", "hicache-fp8"]
    assert found["hicache-bf16"].startswith("hicache-bf16 159K ±")
    assert "~72 (38)" in found["hicache-bf16"]
    assert "hicache 357.6 GiB, fits yes" in found["hicache-bf16"]
    assert found["hicache-fp8"].endswith("refused")
    assert "calibrated by baseline (server-1): 116,000 tokens at mem-fraction-static 0.85" in out
    assert "rates from 2 steady windows of baseline" in out
    assert "rule on kv-cache-dtype" in out


def test_named_presets_come_in_the_order_they_were_named(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    assert list(rows(kvctl("plan", "hicache-fp8", "baseline").out)) == ["hicache-fp8", "baseline"]


def test_the_document_has_each_figure_with_its_interval(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    presets = {p["name"]: p for p in json.loads(kvctl("plan", "--json").out)["presets"]}
    pool = presets["hicache-bf16"]["pool"]
    assert pool["low"] < 159_277 < pool["high"]
    part = presets["hicache-bf16"]["parts"][0]
    assert {"name", "plain", "steady", "bound_by", "rate", "left_s"} <= set(part)
    assert presets["hicache-fp8"]["may_start"] is False
    assert presets["hicache-bf16"]["left_s"] < presets["baseline"]["left_s"]


def test_an_unknown_preset_is_one_line_and_exit_2(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    assert "there is no preset nobody" in kvctl("plan", "nobody").one_error(2)


def test_a_length_that_is_none_is_refused(kvctl: Kvctl) -> None:
    assert "'many' is not a number above 0" in kvctl("plan", "--lengths", "many").one_error(2)
