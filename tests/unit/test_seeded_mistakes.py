"""Fifty mistakes over six versions of SGLang: each one is told, and nothing right beside it is."""

import json
from pathlib import Path

import pytest

from kvctl.core.domain.presets.flags import FlagCatalogue, Severity, check_flags
from kvctl.core.domain.presets.preset import InvalidPreset, merge
from kvctl.core.domain.presets.text import parse_preset
from kvctl.core.servers.flags.catalogue import from_document

FLAGS = Path(__file__).parents[1] / "data" / "flags"
VERSIONS = ("0.4.6.post5", "0.5.2", "0.5.6", "0.5.10", "0.5.15", "0.5.23")
RIGHT = 'tp-size = 2\nmem-fraction-static = 0.88\nkv-cache-dtype = "auto"\nenable-metrics = true\n'

MISTAKES = (
    # a name that is none
    ("0.5.23", "mem-fraction-statik = 0.9", "mem-fraction-static"),
    ("0.5.15", "enable-metric-all = true", "unknown"),
    ("0.5.10", "kv_cache_dtyp = 'auto'", "abbreviation"),
    ("0.5.6", "reasoning-praser = 'kimi_k2'", "reasoning-parser"),
    ("0.5.2", "chunked-prefil-size = 4096", "chunked-prefill-size"),
    ("0.4.6.post5", "disable-radix-cahce = true", "disable-radix-cache"),
    ("0.5.23", "tensor-paralel-size = 8", "tensor-parallel-size"),
    ("0.5.23", "enable-reasoning = true", "unknown"),
    ("0.5.10", "max-num-seqs = 256", "unknown"),
    ("0.5.6", "gpu-memory-utilization = 0.9", "unknown"),
    # an abbreviation, which argparse would take or call ambiguous
    ("0.5.23", "mem-fraction = 0.9", "abbreviation"),
    ("0.5.15", "context-len = 32768", "abbreviation"),
    ("0.5.10", "max-running = 64", "abbreviation"),
    ("0.5.2", "hicache = 2", "ambiguous"),
    ("0.4.6.post5", "speculative = 'EAGLE'", "ambiguous"),
    ("0.5.6", "disable-cuda = true", "ambiguous"),
    # a value of the wrong kind
    ("0.5.23", 'mem-fraction-static = "0,9"', "wants a number"),
    ("0.5.15", "max-running-requests = 64.5", "whole number"),
    ("0.5.10", 'tp-size = "eight"', "whole number"),
    ("0.5.6", "page-size = true", "whole number"),
    ("0.5.2", "schedule-conservativeness = 'low'", "wants a number"),
    ("0.4.6.post5", "tp-size = [1, 2]", "not a list"),
    ("0.5.23", 'max-total-tokens = "400K"', "whole number"),
    ("0.5.10", 'context-length = "1.5Ki"', "whole number"),
    ("0.5.23", "enable-metrics = 'yes'", "switch"),
    ("0.5.2", "disable-overlap-schedule = 1", "switch"),
    ("0.5.15", "watchdog-timeout = '5m'", "wants a number"),
    ("0.5.6", "model-impl = true", "not true"),
    # a value that is no choice
    ("0.5.2", 'kv-cache-dtype = "bf16"', "no choice"),
    ("0.5.23", 'kv-cache-dtype = "fp4_e2m1"', "no choice"),
    ("0.5.6", 'schedule-policy = "routing-key"', "no choice"),
    ("0.4.6.post5", 'attention-backend = "fa4"', "no choice"),
    ("0.5.10", 'load-format = "torch"', "no choice"),
    ("0.5.15", 'dtype = "fp16"', "no choice"),
    ("0.5.23", 'radix-eviction-policy = "fifo"', "no choice"),
    # a flag of another version
    ("0.5.6", "enable-ep-moe = true", "ep-size"),
    ("0.5.23", "cuda-graph-max-bs = 256", "cuda-graph-max-bs-decode"),
    ("0.5.15", "torch-native = true", "unknown"),
    ("0.5.10", "enable-deepep-moe = true", "moe-a2a-backend = deepep"),
    ("0.5.23", "torchao-config = 'int4wo'", "another version"),
    ("0.4.6.post5", "enable-flashmla = true", "removed"),
    ("0.5.2", "soft-watchdog-timeout = 60", "unknown"),
    # several flags that do not go together
    ("0.5.10", "enable-hierarchical-cache = true\ndisable-radix-cache = true", "cannot work with"),
    ("0.5.6", "nnodes = 3\ndist-init-addr = 'a:1'", "does not divide"),
    ("0.5.2", "nnodes = 2\nnode-rank = 2\ndist-init-addr = 'a:1'", "must be below nnodes"),
    ("0.4.6.post5", "enable-dp-attention = true\ndp-size = 3", "must divide tp-size"),
    ("0.5.15", "chunked-prefill-size = 1000\npage-size = 64", "multiple of page-size"),
    ("0.5.10", "dp-size = 2\nnnodes = 2\ndist-init-addr = 'a:1'", "cannot span nodes"),
    # a value that no launch can use
    ("0.5.23", "page-size = 0", "at least 1"),
    ("0.5.2", "max-running-requests = -1", "at least 1"),
)
COMPANIONS = (
    ("0.5.23", "hicache-size = 48", "enable-hierarchical-cache"),
    ("0.5.6", "speculative-num-steps = 3", "speculative-algorithm"),
    ("0.5.15", "node-rank = 1", "nnodes"),
    (
        "0.5.10",
        "enable-metrics-for-all-schedulers = true\nenable-metrics = false",
        "enable-metrics",
    ),
    ("0.4.6.post5", "speculative-eagle-topk = 4", "speculative-algorithm"),
)


def catalogue_of(version: str) -> FlagCatalogue:
    return from_document(json.loads((FLAGS / f"{version}.json").read_text()))


def preset_text(flags: str) -> str:
    names = {line.partition("=")[0].strip().replace("_", "-") for line in flags.splitlines()}
    right = [line for line in RIGHT.splitlines() if line.partition(" ")[0] not in names]
    return "\n".join(["[flags]", *right, flags, ""])


def test_there_are_fifty_different_ones_in_every_version() -> None:
    assert len(set(MISTAKES)) == 50
    assert {version for version, _, _ in MISTAKES} == set(VERSIONS)


@pytest.mark.parametrize(("version", "flags", "told"), MISTAKES)
def test_a_seeded_mistake_is_an_error_with_its_line(version: str, flags: str, told: str) -> None:
    text = preset_text(flags)
    preset = merge([parse_preset("p", "p.toml", text)])
    errors = [
        str(f)
        for f in check_flags(preset.flags, catalogue_of(version))
        if f.severity is Severity.ERROR
    ]
    assert len(errors) == 1, errors
    assert told in errors[0]
    number = int(errors[0].split(":")[1])
    assert text.splitlines()[number - 1] in flags.splitlines()


@pytest.mark.parametrize(("version", "flags", "needed"), COMPANIONS)
def test_a_missing_companion_is_told(version: str, flags: str, needed: str) -> None:
    preset = merge([parse_preset("p", "p.toml", preset_text(flags))])
    told = [str(f) for f in check_flags(preset.flags, catalogue_of(version))]
    assert len(told) == 1 and f"without '{needed}'" in told[0], told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--tp-size = 8", "bare keys|not TOML|without leading dashes"),
        ('"--tp-size" = 8', "without leading dashes"),
        ("tp = 8\ntensor_parallel_size = 8", "given twice"),
        ("api-key = 'hunter2'", "a secret is never written"),
        ("tp-size = []", "must be text"),
        ("tp-size = 2026-01-01", "must be text"),
    ],
)
def test_what_no_version_could_take_is_refused_when_the_file_is_read(flags: str, told: str) -> None:
    with pytest.raises(InvalidPreset, match=told):
        parse_preset("p", "p.toml", f"[flags]\n{flags}\n")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_right_flags_around_them_are_right_in_every_version(version: str) -> None:
    preset = merge([parse_preset("p", "p.toml", preset_text(""))])
    assert check_flags(preset.flags, catalogue_of(version)) == ()
