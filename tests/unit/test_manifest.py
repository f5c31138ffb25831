"""What a run was made from is pinned: a resume with anything else is refused, named, or forced."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.tiny_model import write_tiny_model

from kvctl.core.runs.opening.opening import OpenOptions, open_run
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.outputs.folder import ManifestDiffers

RUN = """
[run]
name = "pinned"
output = "out"
tokenizer = "model"
[sampling]
max_new_tokens = 50
[[partition]]
name = "B1"
input = "b1.jsonl"
prompt_key = "ask"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path / "model")
    rows = [{"id": n, "ask": f"x{n}", "other": f"y{n}"} for n in range(3)]
    (tmp_path / "b1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def begin(
    folder: Path,
    *,
    model: str = "m",
    version: str = "v1",
    force: bool = False,
    model_folder: Path | None = None,
) -> None:
    options = OpenOptions(
        force=force,
        model=model,
        weight_version=version,
        model_folder=None if model_folder is None else str(model_folder),
    )
    run = open_run(load_run(folder / "run.toml"), options, 0.0)
    run.lock.release()
    for index in run.indexes:
        index.close()


def manifest(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "out" / "manifest.json").read_text())
    return found


def edit(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    return change


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a prompt": (edit("b1.jsonl", "x1", "z1"), "input_sha256 B1"),
    "a row more": (edit("b1.jsonl", '{"id": 0', '{"id": 9, "ask": "n"}\n{"id": 0'), "input_sha256"),
    "sampling": (edit("run.toml", "= 50", "= 60"), "sampling B1: .*50.* then, .*60.* now"),
    "a partition more": (
        edit(
            "run.toml",
            "[[part",
            '[[partition]]\nname="B2"\ninput="b1.jsonl"\nprompt_key="ask"\n[[part',
        ),
        "input_sha256 B2: null then",
    ),
    "the key of the prompt": (edit("run.toml", '"ask"', '"other"'), "reading B1"),
    "a prompt wrapped as a turn": (
        edit("run.toml", 'prompt_key = "ask"', 'prompt_key = "ask"\nas_chat = true'),
        "reading B1",
    ),
    "the tokenizer": (edit("model/tokenizer.json", '"merges"', '"merges" '), "prompts_as"),
    "the chat template": (
        edit("model/tokenizer_config.json", "message['role']", "message.role"),
        "prompts_as",
    ),
}


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES.keys())
def test_another_input_tokenizer_template_or_sampling_is_refused_unless_forced(
    folder: Path, change: Callable[[Path], None], said: str
) -> None:
    begin(folder)
    before = manifest(folder)
    change(folder)
    with pytest.raises(ManifestDiffers, match=said) as caught:
        begin(folder)
    assert "\n" not in str(caught.value) and "--force" in str(caught.value)
    assert manifest(folder) == before
    begin(folder, force=True)
    changes = manifest(folder)["changes"]
    assert isinstance(changes, list) and len(changes) == 1
    begin(folder)


@pytest.mark.parametrize(
    ("model", "version", "said"), [("n", "v1", "model"), ("m", "v2", "weight_version")]
)
def test_another_model_or_weight_version_is_refused_unless_forced(
    folder: Path, model: str, version: str, said: str
) -> None:
    begin(folder)
    with pytest.raises(ManifestDiffers, match=said):
        begin(folder, model=model, version=version)
    begin(folder, model=model, version=version, force=True)
    begin(folder, model=model, version=version)


def test_another_order_of_rows_or_name_of_a_file_is_the_same_run(folder: Path) -> None:
    begin(folder)
    rows = (folder / "b1.jsonl").read_text().splitlines()
    (folder / "b1.jsonl").unlink()
    (folder / "renamed.jsonl").write_text("\n".join(reversed(rows)))
    edit("run.toml", "b1.jsonl", "renamed.jsonl")(folder)
    begin(folder)


def test_a_run_begun_before_its_model_was_known_goes_on_with_its_prompts_as_given(
    folder: Path,
) -> None:
    edit("run.toml", 'tokenizer = "model"\n', "")(folder)
    begin(folder)
    assert manifest(folder)["prompts_as"] == "given"
    begin(folder, model_folder=folder / "model")
    assert manifest(folder)["prompts_as"] == "given" and not manifest(folder)["changes"]


def test_a_tokenizer_that_the_run_file_names_afterwards_is_a_change(folder: Path) -> None:
    edit("run.toml", 'tokenizer = "model"\n', "")(folder)
    begin(folder)
    edit("run.toml", "[sampling]", 'tokenizer = "model"\n[sampling]')(folder)
    with pytest.raises(ManifestDiffers, match='prompts_as: "given" then'):
        begin(folder)
