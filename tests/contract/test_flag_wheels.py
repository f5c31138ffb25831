"""The recorded flags of six versions against their wheels, and against SGLang's own parser.

    pytest -m refetch tests/contract/test_flag_wheels.py          # downloads 40 MB
    python -m tests.contract.test_flag_wheels                     # records them anew

The wheels come from wherever pip is configured to look; nothing of them is kept but facts.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_seeded_mistakes import MISTAKES, VERSIONS

from kvctl.core.domain.presets.flags import FlagCatalogue, FlagKind, FlagSpec, Severity, check_flags
from kvctl.core.domain.presets.launch_plan import flag_words
from kvctl.core.domain.presets.preset import Origin, Setting, Value
from kvctl.core.servers.flags.catalogue import (
    Installed,
    from_document,
    read_catalogue,
    to_document,
)

pytestmark = pytest.mark.refetch

ORACLE = Path(__file__).with_name("flag_oracle.py")
RECORDED = Path(__file__).parents[1] / "data" / "flags"
HERE = Origin("p", "p.toml", 1)
UNREADABLE = ("unknown", "no choice", "wants", "whole number", "switch", "not true", "not a list")
"""What check_flags says of mistakes that argparse itself refuses."""


@cache
def unpacked(version: str) -> Path:
    """Download a wheel and return the folder of its package; only what tells flags is kept."""
    place = Path(tempfile.mkdtemp(prefix="kvctl-wheel-"))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--python-version", "3.11"),
            *("--dest", place, f"sglang=={version}"),
        ],
        check=True,
        timeout=600,
    )
    wheel = next(place.glob("sglang-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        wanted = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/", "sglang/srt/utils/")
        archive.extractall(place, [n for n in archive.namelist() if n.startswith(wanted)])
    wheel.unlink()
    return place / "sglang"


def catalogue_of(version: str) -> FlagCatalogue:
    found = read_catalogue(Installed(unpacked(version), version))
    assert found is not None
    return found


def oracle(version: str, argvs: list[list[str]]) -> Any:
    done = subprocess.run(
        [sys.executable, ORACLE, unpacked(version)],
        input=json.dumps(argvs),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout)


def samples(spec: FlagSpec) -> list[Value]:
    """Return values that a flag is believed to take."""
    plain: dict[FlagKind, Value] = {
        FlagKind.SWITCH: True,
        FlagKind.INTEGER: 1,
        FlagKind.QUANTITY: "25.6k",
        FlagKind.NUMBER: 0.5,
        FlagKind.TEXT: "text",
        FlagKind.JSON: '{"a": 1}',
    }
    values: list[Value] = list(spec.choices) or [plain[spec.kind]]
    if spec.takes_many:
        values.append((values[0], values[-1]))  # type: ignore[arg-type]
    return [*values, True] if spec.may_be_bare else values


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_flags_are_those_of_the_wheel(version: str) -> None:
    recorded = from_document(json.loads((RECORDED / f"{version}.json").read_text()))
    assert set(catalogue_of(version).flags) == set(recorded.flags)


@pytest.mark.parametrize("version", VERSIONS)
def test_names_and_choices_are_those_of_sglangs_own_parser(version: str) -> None:
    catalogue, told = catalogue_of(version), oracle(version, [])["flags"]
    assert set(catalogue.names()) == set(told)
    for spec in catalogue.flags:
        known = told[spec.name]["choices"]
        if spec.choices and known is not None:
            assert set(spec.choices) <= set(known), spec.name


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_believed_to_be_right_is_accepted_by_sglang_and_called_no_error(
    version: str,
) -> None:
    catalogue = catalogue_of(version)
    told = oracle(version, [])["flags"]
    # Choices that only running SGLang's other modules could tell: the stand-ins have none.
    is_open = {f.name for f in catalogue.flags if told[f.name]["choices"] is not None} - {
        f.name for f in catalogue.flags if f.choices
    }
    assert is_open <= {
        *("reasoning-parser", "tool-call-parser", "sampling-backend", "kv-canary-real-data")
    }
    cases = [
        (name, value)
        for spec in catalogue.flags
        if not spec.is_removed and spec.name not in {"lora-paths", *is_open}
        for name in (spec.name, *spec.aliases)
        for value in samples(spec)
        if not name.startswith("no-")
    ]
    argvs = [["--model-path", "m", *flag_words(name, value)] for name, value in cases]
    accepted = oracle(version, argvs)["accepted"]
    assert len(cases) > 140
    refused = [case for case, is_fine in zip(cases, accepted, strict=True) if not is_fine]
    assert refused == []
    for name, value in cases:
        found = check_flags([Setting(name, value, HERE)], catalogue)
        assert not [f for f in found if f.severity is Severity.ERROR], (name, value, found)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_refused_as_unreadable_is_refused_by_sglang_too(version: str) -> None:
    cases = []
    for mistaken, flags, told in MISTAKES:
        # Suffixes are read by a module that the stand-ins replace.
        if mistaken == version and told.startswith(UNREADABLE) and "K" not in flags:
            values = tomllib.loads(flags).items()
            words = [
                w
                for name, value in values
                for w in flag_words(name, tuple(value) if isinstance(value, list) else value)
            ]
            cases.append((flags, ["--model-path", "m", *words]))
    accepted = oracle(version, [argv for _, argv in cases])["accepted"]
    assert [flags for (flags, _), is_fine in zip(cases, accepted, strict=True) if is_fine] == []


def record() -> None:
    """Write the flags of every version into the test data."""
    for version in VERSIONS:
        document = to_document(catalogue_of(version))
        rows = ",\n  ".join(json.dumps(flag) for flag in document["flags"])
        text = f'{{"version": "{version}", "flags": [\n  {rows}\n]}}\n'
        (RECORDED / f"{version}.json").write_text(text)


if __name__ == "__main__":
    record()
