"""Snapshots of the mission's host: one steady moment whose numbers agree, and its variations."""

import calendar
from dataclasses import replace
from typing import Any

from kvctl.core.domain.events import Event
from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, HolderKind
from kvctl.core.domain.runs.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.servers.server import (
    Decode,
    Failure,
    LaunchFlag,
    Server,
    ServerState,
    Stage,
    StageState,
)
from kvctl.core.domain.snapshot import PresetSummary, Series, Snapshot
from kvctl.core.domain.verdict import Verdict, VerdictWord, Why

GIB = 1 << 30
MIB = 1 << 20
WALL = float(calendar.timegm((2026, 2, 24, 12, 26, 0)))
AT = 50_000.0


def moment(hour: int, minute: int, second: int = 0) -> float:
    return float(calendar.timegm((2026, 2, 24, hour, minute, second)))


def loads(value: float | None, age: float = 0.4) -> Figure:
    return Figure(value, "/v1/loads", AT - age)


def metrics(value: float | None, age: float = 2.0) -> Figure:
    return Figure(value, "/metrics", AT - age)


def journal(value: float | None) -> Figure:
    return Figure(value, "journal", AT - 0.1)


def nvml(value: float | None) -> Figure:
    return Figure(value, "NVML", AT - 0.5)


def device(index: int, used_gib: float, util: float, celsius: int, watts: int) -> GpuDevice:
    return GpuDevice(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA RTX PRO 6000 Blackwell",
        bus_id=f"0000:{index + 1:02x}:00.0",
        memory_used_bytes=nvml(int(used_gib * GIB)),
        memory_total_bytes=nvml(int(95.6 * GIB)),
        utilisation_ratio=nvml(util),
        temperature_c=nvml(celsius),
        power_w=nvml(watts),
        power_limit_w=nvml(600),
        sm_clock_mhz=nvml(2400),
    )


def holder(index: int, pid: int, kind: HolderKind = HolderKind.RANK, **changes: Any) -> Holder:
    base = Holder(
        gpu_uuid=f"GPU-{index}",
        gpu_index=index,
        pid=pid,
        start_ticks=9_000_000 + pid,
        memory_bytes=int(90.1 * GIB),
        kind=kind,
        evidence="child of 43310",
        title=f"sglang::scheduler_TP{index}",
        user="mo",
        parent_pid=43310,
        owner=None,
        server="hicache-bf16",
        rank=f"TP{index}",
        is_mine=True,
    )
    return replace(base, **changes)


_HEAT = ((98, 64, 412), (97, 63, 409), (98, 61, 405), (98, 65, 411), (97, 66, 408), (99, 62, 403),
         (98, 63, 410), (97, 64, 406))  # fmt: skip
GPUS = GpuView(
    devices=tuple(
        device(i, 90.6 if i == 0 else 90.1, util / 100, celsius, watts)
        for i, (util, celsius, watts) in enumerate(_HEAT)
    ),
    holders=tuple(holder(i, 43400 + i) for i in range(8)),
    at=AT - 0.5,
    driver="580.95",
)
_IDLE_HEAT = ((38, 64), (39, 63), (40, 65), (41, 64), (39, 64), (40, 63), (41, 64), (38, 65))
IDLE_GPUS = GpuView(
    devices=tuple(device(i, 4 / 1024, 0.0, c, w) for i, (c, w) in enumerate(_IDLE_HEAT)),
    at=AT - 0.5,
    driver="580.95",
)
LEFTOVER = holder(
    4,
    41822,
    HolderKind.LEFTOVER,
    memory_bytes=93_699 * MIB,
    evidence="parent gone",
    parent_pid=1,
    server="baseline",
)
LEFTOVER_GPUS = replace(
    IDLE_GPUS,
    devices=(*IDLE_GPUS.devices[:4], device(4, 91.5, 0.0, 39, 64), *IDLE_GPUS.devices[5:]),
    holders=(LEFTOVER,),
)


def partition(name: str, state: PartitionState, total: int, done: int, **changes: Any) -> Partition:
    base = Partition(
        name=name,
        state=state,
        total=total,
        done=done,
        failed=0,
        skipped=0,
        in_flight=0,
        retrying=0,
        tokens=done * 1500,
        mean_tokens=1500.0,
        p95_tokens=2900.0,
        length_capped=0,
        max_new_tokens=8192,
    )
    return replace(base, **changes)


SCOUTED = PartitionState.SCOUTED
PARTITIONS = (
    partition("B1", PartitionState.DONE, 12_000, 12_000, mean_tokens=1402.0, length_capped=24,
              tokens=16_824_000, done_wall=moment(8, 59)),
    partition("B2", PartitionState.OPEN, 5_600, 1_604, mean_tokens=4112.0, p95_tokens=7900.0,
              length_capped=50, failed=2, in_flight=46, tokens=6_595_648, remaining_s=26_040.0,
              is_estimate_rough=False, effective_tokens_per_s=journal(631)),
    partition("B3", SCOUTED, 20_000, 12, mean_tokens=1500.0, remaining_s=28_020.0),
    partition("B4", SCOUTED, 16_000, 12, mean_tokens=1300.0, remaining_s=19_440.0),
    partition("B5", SCOUTED, 14_400, 12, mean_tokens=1600.0, remaining_s=21_540.0),
    partition("B6", SCOUTED, 12_000, 12, mean_tokens=1400.0, remaining_s=15_660.0),
    partition("B7", SCOUTED, 8_000, 12, mean_tokens=1700.0, remaining_s=12_720.0),
)  # fmt: skip
RUN = Run(
    name="eagle3",
    path="/data/eagle3.toml",
    output="/data/out/eagle3",
    state=RunState.RUNNING,
    state_since=AT - 8042,
    target=46,
    auto_target=46,
    in_flight=46,
    in_flight_tokens=88_412.0,
    servers=("http://127.0.0.1:30000",),
    partitions=PARTITIONS,
    total=88_000,
    done=13_664,
    failed=2,
    tokens=23_516_000,
    journal_at=AT - 0.1,
    disk_free_bytes=412 * 10**9,
    remaining_s=123_420.0,
    done_wall=WALL + 123_420.0,
    effective_tokens_per_s=journal(631),
    mean_answer_s=295.0,
    fit_at_mean=38.6,
    held_tokens_mean=3898.0,
)
DECODE = Decode(
    running=loads(38),
    queued=loads(8),
    token_usage=loads(0.93),
    used_tokens=loads(148_128),
    pool_tokens=loads(159_277),
    max_running=loads(2_048),
    generation_tokens_per_s=loads(640.0),
    effective_tokens_per_s=journal(631.0),
    effective_window_s=600.0,
    completed_in_window=92,
    prefill_tokens_per_s=metrics(31.0),
    retracted_per_min=metrics(0.0),
    retracted_total=metrics(14),
    recomputed_tokens_per_min=metrics(0.0),
    cache_hit_ratio=metrics(0.02),
    queue_wait_s=metrics(51.0),
    answer_s=journal(295.0),
    steady_since=AT - 760,
)
FLAGS = (
    LaunchFlag("mem-fraction-static", "0.88", "preset hicache-bf16"),
    LaunchFlag("kv-cache-dtype", "auto", "preset hicache-bf16"),
    LaunchFlag("kv-cache-dtype", "bf16", "resolved"),
    LaunchFlag("hicache-size", "48", "preset hicache-bf16"),
    LaunchFlag("max-total-tokens", "159277", "resolved"),
    LaunchFlag("disable-custom-all-reduce", "true", "preset baseline"),
    LaunchFlag("NCCL_MIN_NCHANNELS", "8", "env"),
    LaunchFlag("num-continuous-decode-steps", "4", "preset baseline"),
    LaunchFlag("tp-size", "8", "preset baseline"),
)
SERVER = Server(
    name="hicache-bf16",
    url="http://127.0.0.1:30000",
    state=ServerState.DECODING,
    state_since=AT - 8042,
    is_managed=True,
    preset="hicache-bf16",
    model="/models/Kimi-K2.5",
    tp_size=8,
    version="0.5.10",
    pid=43310,
    start_ticks=9_043_310,
    launched_wall=moment(10, 1, 37),
    ready_wall=moment(10, 11, 58),
    ready_after_s=621.0,
    log_path="/state/logs/server-20260224-100137.log",
    last_log_at=AT - 1.0,
    last_log_line="[2026-02-24 12:25:59 TP0] Decode batch, #running-req: 38, #token: 148128",
    available_gpu_memory_gb=5.47,
    flags=FLAGS,
    decode=DECODE,
    foreign_requests=loads(0),
)


def cycle(values: tuple[float, ...], spike: float | None = None) -> Series:
    """Ten buckets of six points; a spike widens the scale without lifting its bucket much."""
    points = [value for value in values for _ in range(6)]
    if spike is not None:
        points[0] = spike
        points[1:6] = [(values[0] * 6 - spike) / 5] * 5
    return Series(10.0, tuple(points))


SERIES = {
    "pool": cycle((0.93,) * 10),
    "running": cycle((38.0,) * 10),
    "queued": cycle((8, 5, 8, 5, 8, 5, 8, 5, 5, 8)),
    "generation": cycle((590, 650, 590, 650, 650, 590, 650, 650, 650, 590), 800),
    "effective": cycle((590, 650, 650, 590, 650, 650, 590, 650, 650, 650), 800),
    "retracted": cycle((0.0,) * 10),
    "answer": cycle((560, 400, 310, 295, 295, 295, 295, 295, 295, 295), 1200),
    "length": cycle((4200, 4200, 4000, 4200, 4200, 4200, 4000, 4200, 4200, 4200)),
}
LIMIT = Verdict(
    VerdictWord.LIMIT,
    "KV-bound on B2: 159,277 tokens decode ~39 answers of 4.1K at once, 38 are decoding. "
    "More slots would only wait.",
    'No lever left: fp8 KV would fit ~91 but rule "no fp8 KV" forbids it. '
    "Let it run: done Wed 22:45 ±2 h.",
    (
        Why("pool", "159,277 tokens", "start-up line"),
        Why("held by a request", "3,898 tokens", "lengths seen on B2"),
        Why("fit at once", "159,277 × 0.95 / 3,898 = 39", "pool / held"),
    ),
    short="KV-bound on B2: 159,277 tokens decode ~39 of 4.1K at once; 38 are.",
    short_lever="No allowed lever left (fp8 KV ruled out). Let it run.",
)
NOTE = Verdict(VerdictWord.NOTE, "B3 to B7 are only scouted: their estimates are rough.", "none")
PRESETS = (
    PresetSummary("baseline", "bf16, 0.85", pool_tokens=116_000, effective_tokens_per_s=411),
    PresetSummary("hicache-bf16", "bf16 KV with host-RAM prefix tier", is_running=True,
                  pool_tokens=159_277, generation_tokens_per_s=640, effective_tokens_per_s=631),
    PresetSummary("hicache-fp8", "fp8 KV", refused='rule "no fp8 KV": degrades the model',
                  pool_tokens=376_029, generation_tokens_per_s=1351, effective_tokens_per_s=1131),
)  # fmt: skip


def event(hour: int, minute: int, second: int, kind: str, text: str) -> Event:
    wall = moment(hour, minute, second)
    return Event(AT - (WALL - wall), wall, kind, text)


EVENTS = (
    event(10, 11, 58, "ready", "hicache-bf16: pool 159,277 (predicted 159 K), 5.47 GiB free after "
          "graphs; 44 partials resumed"),
    event(11, 58, 40, "verdict", "LIMIT: 115 of 150 wait; 35 decode at usage 0.94; throughput is "
          "the pool's, not the client's"),
    event(12, 1, 12, "AUTO", "slots 150 → 46: 38 decode, 8 keep the server fed; the other 104 "
          "waited 12 m for nothing"),
    event(12, 12, 24, "throttled", "in flight 150 → 46 reached in 11 m; no request aborted; an "
          "answer takes 295 s instead of ~960 s"),
    event(12, 13, 20, "steady", "usage 0.93, running 38, queue 8 for 60 s; figures may be quoted "
          "from here"),
)  # fmt: skip

STEADY = Snapshot(
    at=AT,
    wall=WALL,
    host="gpu-07",
    version="0.1.0",
    gpus=GPUS,
    servers=(SERVER,),
    run=RUN,
    verdicts=(LIMIT, NOTE),
    presets=PRESETS,
    events=EVENTS,
    series=SERIES,
)


def stage(name: str, state: StageState, took: float | None = None, detail: str = "",
          ratio: float | None = None) -> Stage:  # fmt: skip
    started = None if took is None else AT - took
    ended = AT if state is StageState.DONE else None
    return Stage(name, state, started, ended, detail, ratio)


DONE, TODO = StageState.DONE, StageState.TODO
STAGES = (
    stage("hold run", DONE, 0.1, "nothing sent since 10:01:02"),
    stage("harvest", DONE, 2.4, "44 partials, 88,412 tokens on disk; 106 queued given back"),
    stage("stop", DONE, 11.8, "TERM to session 40117: 9 of 10 processes gone"),
    stage("free GPUs", DONE, 19.6, "GPU 4: 93,699 MiB held by 41822 sglang::scheduler_TP4, ours, "
          "parent gone (now 1); TERM ignored 15 s, KILL at 10:01:34"),
    stage("prove clean", DONE, 1.2, "GPU 0 1 2 3 4 5 6 7 clean: no holder, 4 MiB each"),
    stage("weights", StageState.DOING, 186.0, "29 of 64 shards", 0.45),
    stage("KV pool", TODO, detail="159 K expected"),
    stage("graphs", TODO, detail="35 batch sizes expected"),
    stage("first token", TODO, detail="health answers and a token from pid 43310"),
    stage("resume run", TODO, detail="44 partials first, then 5,182 prompts of B2"),
)  # fmt: skip
STARTING = replace(
    STEADY,
    wall=moment(10, 4, 43),
    gpus=replace(
        GPUS,
        devices=tuple(
            device(i, 33.1 if i == 0 else 32.6, 0.03 if i == 3 else 0.0, 41 + i % 4, 93)
            for i in range(8)
        ),
        holders=tuple(holder(i, 43400 + i, HolderKind.LAUNCHING) for i in range(8)),
    ),
    servers=(
        replace(
            SERVER,
            state=ServerState.STARTING,
            state_since=AT - 186,
            ready_wall=None,
            ready_after_s=None,
            stages=STAGES,
            decode=Decode(),
            last_log_at=AT - 0.8,
            last_log_line="Loading safetensors checkpoint shards:  45% Completed | 29/64",
        ),
    ),
    run=replace(
        RUN,
        state=RunState.HOLDING,
        reason="held for the restart",
        in_flight=0,
        target=0,
        done=12_434,
        partials=44,
        partial_tokens=88_412,
        journal_at=AT - 180,
        done_wall=None,
        remaining_s=None,
        partitions=(
            PARTITIONS[0],
            replace(PARTITIONS[1], done=374, in_flight=0, failed=0, length_capped=12,
                    remaining_s=None),
            *PARTITIONS[2:],
        ),
    ),
    verdicts=(
        Verdict(
            VerdictWord.WAIT,
            "Server loads weights, 45 %. Ready ~10:12; the run resumes by itself.",
            "Slow is not dead: 3 earlier launches took 10–11 m.",
        ),
    ),
    events=(
        event(10, 1, 36, "clean", "GPUs 0–7 proven clean; leftover 41822 on GPU 4 took KILL"),
    ),
    series={},
)  # fmt: skip
FAILED = replace(
    STARTING,
    wall=moment(14, 28, 20),
    gpus=IDLE_GPUS,
    last_good_preset="hicache-bf16",
    servers=(
        replace(
            SERVER,
            name="hicache-bf16-95",
            preset="hicache-bf16-95",
            state=ServerState.FAILED,
            state_since=AT - 8,
            state_reason="all 10 processes gone",
            ready_wall=None,
            pid=None,
            decode=Decode(),
            stages=(
                *STAGES[:5],
                replace(STAGES[5], state=DONE, ended_at=AT, progress_ratio=None),
                stage("KV pool", DONE, 20.0, "171,204 tokens"),
                Stage("graphs", StageState.FAILED, AT - 18, AT, "out of GPU memory"),
                *STAGES[8:],
            ),
            failure=Failure(
                headline="Out of GPU memory while capturing CUDA graphs (TP0–TP7, first TP3). "
                "The KV pool left too little.",
                advice=("mem-fraction-static 0.95 → 0.92 or less (0.01 frees 0.96 GiB)",),
                evidence=(
                    "4127  [14:27:51 TP3] Capture cuda graph begin. avail mem=2.09 GB",
                    "4163  [14:28:09 TP3] torch.OutOfMemoryError: CUDA out of memory. "
                    "Tried to allocate 896.00 MiB",
                    "4201  [14:28:11] Received sigquit from a child process",
                ),
                stage="CUDA graphs",
                after_s=552.0,
            ),
        ),
    ),
    verdicts=(
        Verdict(
            VerdictWord.FAILED,
            "Start of hicache-bf16-95 ended at CUDA graphs after 9 m 12 s: out of GPU memory. "
            "GPUs clean, run held.",
            "R last good preset, w the card",
        ),
    ),
)
NOTHING = Snapshot(
    at=AT,
    wall=WALL,
    host="gpu-07",
    version="0.1.0",
    gpus=GpuView(problem="No NVIDIA driver answers here (libnvidia-ml.so.1 is not installed)."),
    verdicts=(Verdict(VerdictWord.OK, "No server runs here.", "S start a preset, A adopt"),),
    presets=tuple(replace(p, is_running=False) for p in PRESETS),
)
LEFTOVER_SCENE = replace(
    STEADY,
    gpus=LEFTOVER_GPUS,
    servers=(),
    run=replace(RUN, state=RunState.HOLDING, reason="no server answers", in_flight=0),
    verdicts=(
        Verdict(
            VerdictWord.ACT,
            "GPU 4 is not clean: leftover scheduler_TP4 pid 41822 (parent gone) holds 93,699 MiB.",
            "K kill it and prove clean",
        ),
    ),
    series={},
)
PAUSED = replace(
    STEADY,
    servers=(
        replace(
            SERVER,
            state=ServerState.IDLE,
            decode=replace(
                DECODE,
                running=loads(0),
                queued=loads(0),
                token_usage=loads(0.0),
                used_tokens=loads(0),
                generation_tokens_per_s=loads(0.0),
                steady_since=None,
            ),
        ),
    ),
    run=replace(RUN, state=RunState.PAUSED, state_since=AT - 840, reason="Paused by you",
                in_flight=0),
    verdicts=(
        Verdict(
            VerdictWord.HOLD,
            "Paused by you 14 m ago: 0 in flight, server READY and idle.",
            "p send again",
        ),
    ),
)  # fmt: skip
STALE = replace(
    STEADY,
    servers=(
        replace(
            SERVER,
            decode=replace(
                DECODE,
                running=loads(38, 23.0),
                queued=loads(8, 23.0),
                token_usage=loads(0.93, 23.0),
                generation_tokens_per_s=loads(640.0, 23.0),
                retracted_per_min=unknown("needs --enable-metrics"),
            ),
        ),
    ),
)
