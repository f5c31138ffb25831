"""`--help` to flags: the recorded text of 0.5.23 against the catalogue read from its source."""

import json
from pathlib import Path

import pytest

from kvctl.core.domain.presets.flag_help import read_help
from kvctl.core.domain.presets.flag_kinds import kind_of
from kvctl.core.domain.presets.flags import FlagCatalogue, FlagKind, FlagSpec, Severity, check_flags
from kvctl.core.domain.presets.preset import Origin, Setting
from kvctl.core.servers.flags.catalogue import from_document

FLAGS = Path(__file__).parents[1] / "data" / "flags"
CASES = FLAGS.parent / "cases"
VERSIONS = ("0.4.6.post5", "0.5.2", "0.5.6", "0.5.10", "0.5.15", "0.5.23")
HIDDEN = {"forward-pass-metrics-worker-id", "forward-pass-metrics-ipc-name"}


def by_name(flags: tuple[FlagSpec, ...]) -> dict[str, FlagSpec]:
    return {flag.name: flag for flag in flags}


def recorded(version: str) -> FlagCatalogue:
    return from_document(json.loads((FLAGS / f"{version}.json").read_text()))


@pytest.fixture(scope="module")
def told() -> dict[str, FlagSpec]:
    return by_name(read_help((FLAGS / "help-0.5.23.txt").read_text()))


def test_the_help_tells_every_flag_of_the_source_but_the_hidden_ones(
    told: dict[str, FlagSpec],
) -> None:
    source = by_name(recorded("0.5.23").flags)
    assert set(source) - set(told) == HIDDEN
    assert set(told) <= set(source)
    assert len(told) == 529


def test_aliases_lists_and_requirements_are_those_of_the_source(told: dict[str, FlagSpec]) -> None:
    for name, spec in by_name(recorded("0.5.23").flags).items():
        if name in HIDDEN:
            continue
        seen = told[name]
        assert set(seen.aliases) == set(spec.aliases), name
        assert seen.takes_many == spec.takes_many, name
        assert seen.is_required == spec.is_required, name
        assert (seen.kind is FlagKind.SWITCH) == (spec.kind is FlagKind.SWITCH), name
        assert not spec.choices or seen.choices == spec.choices, name
        assert seen.kind in (spec.kind, FlagKind.TEXT), name


def test_the_help_knows_choices_that_the_source_only_has_at_run_time(
    told: dict[str, FlagSpec],
) -> None:
    assert "kimi_k2" in told["reasoning-parser"].choices
    assert not recorded("0.5.23").find("reasoning-parser").choices  # type: ignore[union-attr]


def test_help_words_and_deprecation_are_kept(told: dict[str, FlagSpec]) -> None:
    assert told["tokenizer-path"].help == "The path of the tokenizer."
    graphs = "--cuda-graph-backend-{decode,prefill}=disabled"
    assert told["disable-cuda-graph"].successor == graphs
    assert told["grpc-mode"].successor == "--smg-grpc-mode"
    assert told["tp-size"].successor is None


def test_a_mistake_is_found_by_help_alone_and_a_hidden_flag_is_not_called_one(
    told: dict[str, FlagSpec],
) -> None:
    catalogue = FlagCatalogue("0.5.23", tuple(told.values()), is_from_help=True)
    here = Origin("p", "p.toml", 3)
    found = check_flags(
        [
            Setting("mem-fraction-static", "0,85", here),
            Setting("kv-cache-dtype", "fp4_e2m1", here),
            Setting("enable-metrics", "on", here),
            Setting("enable-ep-moe", True, here),
            Setting("mem-fraction", 0.8, here),
            Setting("forward-pass-metrics-worker-id", "w", here),
        ],
        catalogue,
    )
    assert [f.flag for f in found if f.severity is Severity.ERROR] == [
        *("mem-fraction-static", "kv-cache-dtype", "enable-metrics", "enable-ep-moe"),
        "mem-fraction",
    ]
    assert [f.flag for f in found if f.severity is Severity.WARNING] == [
        "forward-pass-metrics-worker-id"
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kind_that_is_assumed_by_name_refuses_nothing_that_a_version_accepts(
    version: str,
) -> None:
    wider = {
        FlagKind.INTEGER: {FlagKind.INTEGER},
        FlagKind.QUANTITY: {FlagKind.INTEGER, FlagKind.QUANTITY},
        FlagKind.NUMBER: {FlagKind.INTEGER, FlagKind.NUMBER},
    }
    for spec in recorded(version).flags:
        kind = kind_of(spec.name, *spec.aliases)
        if kind is not FlagKind.TEXT:
            assert spec.kind in wider[kind], (spec.name, kind, spec.kind)


def test_o10_help_is_read_too() -> None:
    flags = by_name(read_help((CASES / "o10-help.txt").read_text()))
    assert "reasoning-parser" in flags
    assert "tp" in flags["tensor-parallel-size"].aliases or "tp-size" in flags


NEW_STYLE = """WARNING: something imported badly
usage: launch_server.py [-h] --model-path MODEL_PATH [--tp-size N]
                        [--lora-paths [LORA_PATHS ...]]

An explanation: with a colon.

options:
  -h, --help            show this help message and exit
  --model-path, --model MODEL_PATH
                        The path.
  --tp-size, --tensor-parallel-size, --tp N
                        Ranks (default: 1)
  --bs BS [BS ...]      Sizes.
  --lora-paths [LORA_PATHS ...]
  --pair A B            Two words.
  --warm [{a,b}]        Bare or one of two.
  --quiet               Say less.

A closing line --not-an-option
"""


def test_the_form_of_newer_pythons_and_lines_around_it_are_read() -> None:
    flags = by_name(read_help(NEW_STYLE))
    assert set(flags) == {"model-path", "tp-size", "bs", "lora-paths", "pair", "warm", "quiet"}
    assert flags["model-path"].is_required and flags["model-path"].aliases == ("model",)
    assert flags["tp-size"].aliases == ("tensor-parallel-size", "tp")
    assert (flags["tp-size"].kind, flags["tp-size"].default) == (FlagKind.INTEGER, "1")
    assert flags["bs"].takes_many and not flags["bs"].may_be_bare
    assert flags["lora-paths"].takes_many and flags["lora-paths"].may_be_bare
    assert flags["pair"].takes_many
    assert flags["warm"].choices == ("a", "b") and flags["warm"].may_be_bare
    assert flags["quiet"].kind is FlagKind.SWITCH
    assert not flags["tp-size"].is_required


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):\n  boom", "options:\n"])
def test_what_is_no_help_has_no_flags(text: str) -> None:
    assert read_help(text) == ()
