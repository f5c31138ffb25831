"""Stage `phases`: one run, its slots in AUTO and fixed in turn; the figures of each phase."""

import gzip
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from tests.gpu.job import Job
from tests.gpu.load import read_requests, write_run
from tests.gpu.measure import Measurement, Row

NAME = "law"
MOST_ROWS = 6000


def phases(job: Job) -> None:
    """Run the phases one after the other and summarise each."""
    plan = job.plan
    path = plan.work / f"{NAME}.toml"
    if not path.exists():
        write_run(plan.work, NAME, MOST_ROWS, plan.load)
    kvctl = job.kvctl
    state = ["--state-dir", str(kvctl.state)]
    url = job.server()["url"]
    measurement = Measurement(url, [*kvctl.command, *state, "watch", "--json", "--interval", "1"])
    measurement.start()
    spans = []
    is_open = kvctl.read("run", "status")["state"] in ("running", "holding", "paused")
    for number, slots in enumerate(plan.phases):
        if time.monotonic() + plan.phase_s > plan.ends_at:
            kvctl.note(f"no time left for phase {number + 1}: {slots}")
            break
        with job.act(f"phase {number + 1}: {slots}") as found:
            found["cold"] = not is_open
            if not is_open:
                kvctl.call("run", "start", str(path))
            kvctl.call("run", "throttle", slots)
            is_open = True
            began = time.time()
            time.sleep(plan.phase_s)  # the phase itself is what is measured
            spans.append((slots, began, time.time(), not number and found["cold"]))
            kvctl.call("status", expect=None)
    measurement.stop()
    measurement.save(plan.out / "samples.jsonl.gz")
    requests = read_requests(plan.work / f"out-{NAME}")
    with gzip.open(plan.out / "requests.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in requests)
    job.seen["phases"] = [
        {"slots": s, "cold": cold, "began": began, "ended": end}
        | {"steady": figures(measurement, requests, began + plan.settle_s, end)}
        | {"whole": figures(measurement, requests, began, end)}
        for s, began, end, cold in spans
    ]
    for row in job.seen["phases"]:
        kvctl.note(json.dumps(row))
    job.save()


def figures(m: Measurement, requests: Sequence[Row], begin: float, end: float) -> dict[str, Any]:
    """Return the figures of a window."""
    server = [row for row in m.servers if begin <= row["wall"] <= end]
    shown = [row for row in m.kvctl if begin <= row["wall"] <= end]
    ended = [r for r in requests if begin <= r["t_done"] <= end]
    took = sorted(r["t_done"] - r["t_submit"] for r in ended)
    in_flight = _mean(shown, "r_in_flight")
    per_s = len(ended) / (end - begin)
    return {
        "seconds": round(end - begin, 1),
        "samples": [len(server), len(shown)],
        "decoded_per_s": _rate(server, "decoded"),
        "prefilled_per_s": _rate(server, "prefilled"),
        "kvctl_generation_per_s": _mean(shown, "s_generation_tokens_per_s"),
        "journal_tokens_per_s": round(sum(r["counted"] for r in ended) / (end - begin), 1),
        "completed_per_s": round(per_s, 3),
        "running": _mean(server, "running"),
        "queued": _mean(server, "queued"),
        "queued_max": max((row["queued"] for row in server), default=None),
        "usage": _mean(server, "usage"),
        "usage_min": min((row["usage"] for row in server), default=None),
        "usage_max": max((row["usage"] for row in server), default=None),
        "kvctl_running": _mean(shown, "s_running"),
        "kvctl_queued": _mean(shown, "s_queued"),
        "kvctl_usage": _mean(shown, "s_token_usage"),
        "retracted": _growth(server, "retracted"),
        "empty_queue_samples": sum(1 for row in server if not row["queued"]),
        "starved_samples": sum(1 for r in server if not r["queued"] and r["usage"] < 0.72),
        "target_mean": _mean(shown, "r_target"),
        "target_min": min((r["r_target"] for r in shown if r["r_target"]), default=None),
        "target_max": max((r["r_target"] for r in shown if r["r_target"]), default=None),
        "holding_samples": sum(1 for r in shown if r["r_state"] == "holding"),
        "in_flight": in_flight,
        "littles_s": round(in_flight / per_s, 1) if in_flight and per_s else None,
        "answer_mean_s": round(statistics.fmean(took), 1) if took else None,
        "answer_p50_s": _quantile(took, 0.5),
        "answer_p99_s": _quantile(took, 0.99),
        "gpu_busy": _mean(shown, "gpu_busy"),
    }


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return round(statistics.fmean(values), 3) if values else None


def _growth(rows: Sequence[Row], name: str) -> float | None:
    values: list[float] = [float(row[name]) for row in rows if name in row]
    return values[-1] - values[0] if values else None


def _rate(rows: Sequence[Row], name: str) -> float | None:
    counted = [row for row in rows if name in row]
    if len(counted) < 2:
        return None
    seconds = float(counted[-1]["wall"] - counted[0]["wall"])
    return round(float(counted[-1][name] - counted[0][name]) / seconds, 1)


def _quantile(values: Sequence[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(share * len(values)))], 1) if values else None
