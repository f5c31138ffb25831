"""The JSON document of everything: the whole picture of the host; pure."""

from collections.abc import Sequence
from dataclasses import asdict

from kvctl.core.documents.figures import Document
from kvctl.core.documents.gpus import gpus_document
from kvctl.core.documents.run import run_document
from kvctl.core.documents.server import server_document
from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import OperatingPoint, PresetSummary, Snapshot
from kvctl.core.domain.verdict import Verdict

_EVENTS_SHOWN = 20


def status_document(snapshot: Snapshot) -> Document:
    """Return everything: `kvctl status --json`, and each line of `kvctl watch --json`."""
    return {
        "wall": snapshot.wall,
        "host": snapshot.host,
        "version": snapshot.version,
        "simulated": snapshot.is_simulated,
        "busy": snapshot.busy_command,
        "operators": list(snapshot.operators),
        "verdict": _verdict(snapshot.verdicts[0]) if snapshot.verdicts else None,
        "verdicts": [_verdict(verdict) for verdict in snapshot.verdicts],
        "servers": [server_document(server, snapshot.at) for server in snapshot.servers],
        "run": run_document(snapshot),
        "gpus": gpus_document(snapshot),
        "presets": [_preset(preset) for preset in snapshot.presets],
        "operating_points": operating_points(snapshot.operating_points),
        "events": [event_document(event) for event in snapshot.events[-_EVENTS_SHOWN:]],
    }


def operating_points(points: Sequence[OperatingPoint]) -> list[Document]:
    """Return measured operating points: the end of `kvctl demo --headless --json`."""
    return [asdict(point) for point in points]


def event_document(event: Event) -> Document:
    """Return one event."""
    return {"wall": event.wall, "kind": event.kind, "text": event.text, "command": event.command}


def _verdict(verdict: Verdict) -> Document:
    return {
        "word": verdict.word.value,
        "sentence": verdict.sentence,
        "lever": verdict.lever,
        "why": [asdict(why) for why in verdict.why],
    }


def _preset(preset: PresetSummary) -> Document:
    return {
        "name": preset.name,
        "description": preset.description,
        "running": preset.is_running,
        "refused": preset.refused,
        "problem": preset.problem,
        "needs": list(preset.needs),
        "pool_tokens": preset.pool_tokens,
        "generation_tokens_per_s": preset.generation_tokens_per_s,
        "effective_tokens_per_s": preset.effective_tokens_per_s,
    }
