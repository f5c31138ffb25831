"""The test engine's model folder and command line; these need no engine."""

import hashlib
import json
from pathlib import Path

import tokenizers
from tests.engine.launch import EngineHome, engine_command, engine_env, engine_home
from tests.engine.tiny_model import safetensors, tensors, write_tiny_model

WEIGHTS_SHA256 = "3178090fc7f476ea2b9e1e282e4cec59d5c6d1fa8792df2e4cb33c76aeb777c2"


def test_the_weights_are_the_same_bytes_everywhere() -> None:
    assert hashlib.sha256(safetensors(tensors())).hexdigest() == WEIGHTS_SHA256


def test_a_token_is_a_byte_and_its_id_the_byte(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    every_byte = [*range(0x80), *"é日\u202e🙂".encode()]
    text = bytes(every_byte).decode()

    assert tokenizer.encode(text).ids == every_byte
    assert tokenizer.decode(every_byte) == text
    assert tokenizer.encode("<|user|>").ids == [260]


def test_the_files_agree_on_context_and_special_tokens(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    ids = {
        t["content"]: t["id"]
        for t in json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    }

    assert config["max_position_embeddings"] == tokenizer["model_max_length"] == 8192
    assert config["bos_token_id"] == ids[tokenizer["bos_token"]]
    assert config["eos_token_id"] == ids[tokenizer["eos_token"]]


def test_a_flag_replaces_its_default_and_false_leaves_it_out() -> None:
    home = EngineHome(Path("/engine"))
    argv = engine_command(31000, home, max_total_tokens=2048, enable_metrics=False, tp_size=1)

    assert argv[:3] == ["/engine/venv/bin/python", "-m", "sglang.launch_server"]
    assert argv[argv.index("--max-total-tokens") + 1] == "2048"
    assert argv[argv.index("--port") + 1] == "31000"
    assert argv[argv.index("--tp-size") + 1] == "1"
    assert "--sleep-on-idle" in argv
    assert "--enable-metrics" not in argv


def test_the_environment_names_the_engine_and_its_stand_ins() -> None:
    home = engine_home({"XDG_CACHE_HOME": "/cache", "KVCTL_ENGINE_HOME": ""})
    environment = engine_env(home, base={"PATH": "/bin", "PYTHONPATH": "/mine"})

    assert environment["PYTHONPATH"] == "/cache/kvctl-engine/standins"
    assert environment["KVCTL_ENGINE_MODEL"] == "/cache/kvctl-engine/tiny-llama"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["PATH"] == "/bin"
