"""A preset's flags against the catalogue of a version (cases O10 and the recorded versions)."""

import ast
import json
import re
from pathlib import Path

import pytest

from kvctl.core.domain.presets.flags import (
    FlagCatalogue,
    FlagFinding,
    FlagKind,
    Severity,
    check_flags,
)
from kvctl.core.domain.presets.launch_plan import render
from kvctl.core.domain.presets.preset import merge
from kvctl.core.domain.presets.text import is_secret_flag, parse_preset
from kvctl.core.servers.flags.catalogue import (
    Installed,
    from_document,
    read_catalogue,
    to_document,
)
from kvctl.core.servers.flags.source import Constants, read_add_argument, read_field

DATA = Path(__file__).parents[1] / "data"
VERSIONS = ("0.4.6.post5", "0.5.2", "0.5.6", "0.5.10", "0.5.15", "0.5.23")


def catalogue_of(version: str) -> FlagCatalogue:
    return from_document(json.loads((DATA / "flags" / f"{version}.json").read_text()))


def findings_of(flags: str, catalogue: FlagCatalogue) -> tuple[FlagFinding, ...]:
    preset = merge([parse_preset("p", "p.toml", f"[flags]\n{flags}\n")])
    return check_flags(preset.flags, catalogue)


def errors_of(flags: str, version: str = "0.5.23") -> list[str]:
    found = findings_of(flags, catalogue_of(version))
    return [str(f) for f in found if f.severity is Severity.ERROR]


def warnings_of(flags: str, version: str = "0.5.23") -> list[str]:
    found = findings_of(flags, catalogue_of(version))
    return [str(f) for f in found if f.severity is Severity.WARNING]


def test_o10_all_mistakes_are_told_at_once_with_their_lines() -> None:
    text = (DATA / "cases" / "o10-bad-preset.toml").read_text()
    catalogue = from_document(json.loads((DATA / "cases" / "o10-catalogue.json").read_text()))
    plan = render(merge([parse_preset("o10", "o10.toml", text)]), {})
    told = [str(f) for f in check_flags(plan.settings, catalogue)]
    assert len(told) == 3
    assert told[0].startswith("o10.toml:9: [flags] enable-ep-moe: unknown to SGLang")
    assert told[1] == 'o10.toml:10: [flags] mem-fraction-static: wants a number, not "0,85"'
    assert told[2].startswith("o10.toml:11: [flags] max-running-requests: wants a whole number")
    assert "--reasoning-parser kimi_k2 --enable-metrics" in " ".join(plan.argv)
    assert "--disable-radix-cache" not in plan.argv
    assert plan.port == 30000


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("mem-fraction-statik = 0.8", "did you mean 'mem-fraction-static'?"),
        ("mem-fraction = 0.8", "an abbreviation: write it in full, 'mem-fraction-static'"),
        ("disable-c = true", "ambiguous: it could be "),
        ('load-format = "nonsense"', '"nonsense" is no choice; one of auto'),
        ('tp-size = "two"', 'wants a whole number, not "two"'),
        ("max-total-tokens = 0.8", "wants a whole number"),
        ("max-running-requests = 512.0", "wants a whole number"),
        ("enable-metrics = 1", "is a switch"),
        ("tp-size = true", "wants a whole number, not true"),
        ("tp-size = [1, 2]", "not a list"),
        ("mem-fraction-static = 1.2", "between 0 and 1"),
        ('kv-cache-dtype = "fp4_e2m1"', "is no choice"),
        ("cuda-graph-max-bs = 8", "removed; now cuda-graph-max-bs-decode"),
        ("enable-ep-moe = true", "removed; now ep-size"),
        ("enable-hierarchical-cache = true\ndisable-radix-cache = true", "cannot work with"),
        ("tokenizer-worker-num = 1.5", "wants a whole number"),
    ],
)
def test_a_mistake_is_told(flag: str, told: str) -> None:
    errors = errors_of(flag)
    assert errors, flag
    assert re.search(told.replace("?", r"\?"), errors[0]), errors


@pytest.mark.parametrize(
    "flag",
    [
        "tp = 8",
        'tp-size = "8"',
        'max-total-tokens = "400k"',
        "cuda-graph-bs-decode = [1, 2, 4]",
        "mem-fraction-static = 0.9",
        "watchdog-timeout = 300",
        'kv-cache-dtype = "bf16"',
        'lora-paths = ["a=/x", "b=/y"]',
        'reasoning-parser = "kimi_k2"',
        "trust_remote_code = true",
    ],
)
def test_what_sglang_accepts_is_no_error(flag: str) -> None:
    assert errors_of(flag) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flag_with_its_own_default_is_accepted(version: str) -> None:
    catalogue = catalogue_of(version)
    conflicting = {"enable-hierarchical-cache", "mem-fraction-static"}
    for spec in catalogue.flags:
        if spec.is_removed or spec.name in conflicting or is_secret_flag(spec.name):
            continue
        sample = {
            FlagKind.SWITCH: "true",
            FlagKind.INTEGER: spec.default or "1",
            FlagKind.QUANTITY: "1",
            FlagKind.NUMBER: spec.default or "0.5",
            FlagKind.TEXT: '"x"',
            FlagKind.JSON: "{ a = 1 }",
        }
        chosen = json.dumps(spec.choices[0]) if spec.choices else sample[spec.kind]
        line = f"{spec.name} = {chosen}"
        preset = merge([parse_preset("p", "p", f"[launch]\n[flags]\n{line}\n")])
        found = check_flags(preset.flags, catalogue)
        assert [f for f in found if f.severity is Severity.ERROR] == [], line


def test_a_dead_flag_is_a_warning() -> None:
    assert "has no effect" in warnings_of("num-continuous-decode-steps = 4")[0]


def test_a_deprecated_flag_names_its_successor() -> None:
    assert "cuda-graph-backend" in warnings_of("disable-cuda-graph = true")[0]


def test_a_flag_without_the_one_it_needs_is_a_warning() -> None:
    assert "without 'enable-hierarchical-cache'" in warnings_of("hicache-size = 48")[0]
    assert warnings_of("hicache-size = 48\nenable-hierarchical-cache = true") == []


def test_fp8_kv_is_a_warning() -> None:
    assert "quality" in warnings_of('kv-cache-dtype = "fp8_e4m3"')[0]


def test_one_flag_under_two_names_of_the_version_is_refused() -> None:
    flags = "attn-dp-size = 2\nattention-data-parallel-size = 2"
    assert "given twice" in errors_of(flags)[0]


def test_a_catalogue_survives_its_document() -> None:
    catalogue = catalogue_of("0.5.23")
    assert from_document(to_document(catalogue)).find("kv-cache-dtype") == catalogue.find(
        "kv_cache_dtype"
    )


NEW = """
class Memory:
    mem_fraction_static: A[Optional[float], Arg(help="h", resolvable=True)] = None
    page_size: A[int | None, "h"] = None
    _hidden: A[bool, Arg(no_cli=True)] = False
    policy: A[str, Arg(help="h", choices=POLICIES)] = "lru"
    mode: A[Literal["a", "b"], "h"] = "a"
    sizes: A[Optional[List[int]], "h"] = None
    config: A[Optional[Dict[str, Any]], Arg(help="h", type_parser=json.loads)] = None
    tp_size: A[int, Arg(help="h", aliases=["--tensor-parallel-size"])] = 1
    maybe: A[Optional[bool], Arg(help="h", action=argparse.BooleanOptionalAction)] = None
    plain: int = 3
"""


def test_annotated_fields_are_read() -> None:
    module = ast.parse('POLICIES = ["lru", "lfu"]\n' + NEW)
    constants = Constants.of([module])
    fields = [s for c in module.body if isinstance(c, ast.ClassDef) for s in c.body]
    flags = {
        f.name: f for s in fields if isinstance(s, ast.AnnAssign) for f in read_field(s, constants)
    }
    assert set(flags) == {
        *("mem-fraction-static", "page-size", "policy", "mode", "sizes"),
        *("config", "tp-size", "maybe"),
    }
    assert flags["mem-fraction-static"].kind is FlagKind.NUMBER
    assert flags["page-size"].kind is FlagKind.INTEGER
    assert flags["policy"].choices == ("lru", "lfu")
    assert flags["policy"].default == "lru"
    assert flags["mode"].choices == ("a", "b")
    assert flags["sizes"].takes_many
    assert flags["config"].kind is FlagKind.JSON
    assert flags["tp-size"].aliases == ("tensor-parallel-size",)
    assert flags["maybe"].aliases == ("no-maybe",)


@pytest.mark.parametrize(
    ("call", "kind", "many", "choices"),
    [
        ('p.add_argument("--a", type=int, default=X.a)', FlagKind.INTEGER, False, ()),
        ('p.add_argument("--a", action="store_true")', FlagKind.SWITCH, False, ()),
        ('p.add_argument("--a", type=str, nargs="+")', FlagKind.TEXT, True, ()),
        ('p.add_argument("--a", choices=["x", "y"])', FlagKind.TEXT, False, ("x", "y")),
        ('p.add_argument("--a", choices=["x", *LIST])', FlagKind.TEXT, False, ("x", "z")),
        ('p.add_argument("--a", choices=list(f()))', FlagKind.TEXT, False, ()),
        ('p.add_argument("--a", type=human_readable_int)', FlagKind.QUANTITY, False, ()),
    ],
)
def test_add_argument_calls_are_read(
    call: str, kind: FlagKind, many: bool, choices: tuple[str, ...]
) -> None:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    flag = read_add_argument(node, Constants({"LIST": ("z",)}))
    assert flag is not None
    assert (flag.name, flag.kind, flag.takes_many, flag.choices) == ("a", kind, many, choices)


def test_an_unknown_layout_gives_no_catalogue(tmp_path: Path) -> None:
    assert read_catalogue(Installed(tmp_path, "9.9")) is None
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt" / "server_args.py").write_text("def broken(:\n")
    assert read_catalogue(Installed(tmp_path, "9.9")) is None
