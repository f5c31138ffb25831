"""Writes a scenario to disk as what an operator would have: prompt files and a run file."""

import json
from pathlib import Path

from kvctl.core.sim.scenarios import PartitionPlan, Scenario, prompts_of

SCOUT = 4
"""Answers of every partition first; few, because the demo's partitions are small."""


def write_run(folder: Path, scenario: Scenario, server: str = "http://127.0.0.1:30000") -> Path:
    """Write prompts and run file into a folder and return the run file's path."""
    prompts = folder / "prompts"
    prompts.mkdir(parents=True, exist_ok=True)
    for plan in scenario.partitions:
        _write_prompts(prompts / f"{plan.name}.jsonl", scenario, plan)
    path = folder / f"{scenario.name}.run.toml"
    path.write_text(run_file_text(scenario, server), "utf-8")
    return path


def run_file_text(scenario: Scenario, server: str) -> str:
    """Return the run file of a scenario; paths are relative to it."""
    lines = [
        f"# {scenario.description}",
        "[run]",
        f'name = "{scenario.name}"',
        f'output = "out/{scenario.name}"',
        f'server = "{server}"',
        f"concurrency = {scenario.slots}",
        'on_ceiling = "notify"',
        f"scout = {SCOUT}",
        "",
        "[sampling]",
        f"max_new_tokens = {min(plan.max_new_tokens for plan in scenario.partitions)}",
        "temperature = 0.7",
    ]
    for plan in scenario.partitions:
        lines += [
            "",
            "[[partition]]",
            f'name = "{plan.name}"',
            f'input = ["prompts/{plan.name}.jsonl"]',
            f"weight = {plan.weight}",
            f"sampling = {{ max_new_tokens = {plan.max_new_tokens} }}",
        ]
    return "\n".join(lines) + "\n"


def _write_prompts(path: Path, scenario: Scenario, plan: PartitionPlan) -> None:
    with path.open("w", encoding="utf-8") as file:
        for prompt in prompts_of(scenario, plan):
            record = {"id": prompt.id, "input_ids": prompt.input_ids}
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
