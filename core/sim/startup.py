"""How a simulated server comes up: SGLang's stages, lines and memory, in about 40 seconds.

Source: SGLang 0.5.23 model_executor/model_runner.py, managers/scheduler.py; order and wording of
a real server's log.
"""

from dataclasses import dataclass

from kvctl.core.clock import Clock
from kvctl.core.sim.arguments import ServerArguments
from kvctl.core.sim.logfile import ServerLog
from kvctl.core.sim.memory import (
    KV_VALUES_PER_TOKEN,
    RankMemory,
    default_fraction,
    plan_rank,
    value_bytes,
)
from kvctl.core.sim.ranks import Ranks

SHARDS = 64
DECODE_BATCHES = (1, 2, 4, 8, *range(16, 513, 16))
UNBALANCED_SHARE = 0.9
"""Below this share of another rank's free memory SGLang refuses to start."""


class StartFailed(Exception):
    """A scheduler failed while it started; the message is its exception."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Simulated seconds of each stage."""

    imports: float = 6.0
    spawn: float = 4.0
    distributed: float = 2.0
    weights: float = 16.0
    pool: float = 1.5
    prefill_graphs: float = 5.0
    decode_graphs: float = 4.0
    front: float = 1.0


@dataclass(frozen=True, slots=True)
class Startup:
    """One start of one server."""

    arguments: ServerArguments
    clock: Clock
    log: ServerLog
    ranks: Ranks
    stages: Stages = Stages()

    async def run(self) -> RankMemory:
        """Go through all stages up to the last line before HTTP opens.

        Raises:
            StartFailed: The GPUs are taken, or the weights leave no room for a pool.
        """
        await self.clock.sleep(self.stages.imports)
        self.log.main(f"server_args={_as_server_args(self.arguments)}")
        self.ranks.start()
        await self.clock.sleep(self.stages.spawn)
        memory = self._plan()
        await self._init(memory)
        await self._load(memory)
        await self._allocate(memory)
        await self._capture(memory)
        return memory

    def _plan(self) -> RankMemory:
        values = self.arguments.values
        count = len(self.ranks.gpus)
        if values["mem_fraction_static"] is None:
            values["mem_fraction_static"] = default_fraction(count)
        plans = [
            plan_rank(
                float(values["mem_fraction_static"]),
                self.arguments.text("kv_cache_dtype"),
                count,
                self.arguments.maybe_number("max_total_tokens"),
                self.ranks.taken_bytes(gpu),
            )
            for gpu in self.ranks.gpus
        ]
        least, most = (f(plan.before_load for plan in plans) for f in (min, max))
        if least < UNBALANCED_SHARE * most:
            raise StartFailed(
                "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by "
                f"other processes. pre_model_load_memory={least}, local_gpu_memory={most}, "
                f"local_gpu_memory * 0.9={most * UNBALANCED_SHARE}"
            )
        return min(plans, key=lambda plan: plan.pool_tokens)

    async def _init(self, memory: RankMemory) -> None:
        self.log.rank("Init torch distributed begin.")
        self.ranks.hold(memory.used_bytes(memory.total - 0.6))
        await self.clock.sleep(self.stages.distributed)
        self.ranks.hold(memory.used_bytes(memory.before_load))
        self.log.rank(
            f"Init torch distributed ends. elapsed={self.stages.distributed:.2f} s, "
            f"mem usage={memory.total - memory.before_load:.2f} GB"
        )

    async def _load(self, memory: RankMemory) -> None:
        self.log.rank(f"Load weight begin. avail mem={memory.before_load:.2f} GB")
        part = self.stages.weights / SHARDS
        for shard in range(SHARDS + 1):
            what = "Loading safetensors checkpoint shards"
            self.log.progress(what, shard, SHARDS, shard * part)
            loaded = min(memory.weights * shard / SHARDS, memory.before_load)
            if shard % 4 == 0:
                self.ranks.hold(memory.used_bytes(memory.before_load - loaded))
            await self.clock.sleep(part)
        if memory.pool_tokens <= 0:
            raise StartFailed(
                "RuntimeError: Loaded weights leave no GPU memory for the KV cache under "
                f"--mem-fraction-static={self.arguments.values['mem_fraction_static']}. "
                "Not enough memory. Please try to increase --mem-fraction-static."
            )
        self.log.rank(
            f"Load weight end. elapsed={self.stages.weights:.2f} s, "
            f"type=KimiK25ForConditionalGeneration, quant=compressed-tensors, "
            f"avail mem={memory.after_load:.2f} GB, mem usage={memory.weights:.2f} GB."
        )

    async def _allocate(self, memory: RankMemory) -> None:
        await self.clock.sleep(self.stages.pool)
        dtype = "torch.float8_e4m3fn" if self._width == 1 else "torch.bfloat16"
        self.log.rank(
            f"KV Cache is allocated. dtype: {dtype}, #tokens: {memory.pool_tokens}, "
            f"KV size: {memory.kv_cache:.2f} GB"
        )
        self.ranks.hold(memory.used_bytes(memory.after_pool))
        self.log.rank(f"Memory pool end. avail mem={memory.after_pool:.2f} GB")
        if self.arguments.values["enable_hierarchical_cache"]:
            size = float(self.arguments.values["hicache_size"] or 0) or 2 * memory.kv_cache
            tokens = int(size * 1e9) // (KV_VALUES_PER_TOKEN * self._width)
            self.log.rank(
                f"Allocating kv hierarchical KV host pool: {tokens} tokens, "
                f"{size:.2f} GB host memory."
            )

    async def _capture(self, memory: RankMemory) -> None:
        half = memory.graphs / 2
        free = memory.after_pool
        self.log.rank(
            "Capture target prefill CUDA graph begin. backend=breakable, "
            f"num_tokens=[4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192], "
            f"avail mem={free:.2f} GB"
        )
        await self.clock.sleep(self.stages.prefill_graphs)
        free -= half
        self.ranks.hold(memory.used_bytes(free))
        self.log.rank(
            f"Capture target prefill CUDA graph end. elapsed={self.stages.prefill_graphs:.2f} s, "
            f"mem usage={half:.2f} GB, avail mem={free:.2f} GB."
        )
        await self._capture_decode(free, half)
        self.ranks.hold(memory.used_bytes(memory.after_graphs))
        self._summary(memory)

    async def _capture_decode(self, free: float, half: float) -> None:
        listed = ", ".join(map(str, DECODE_BATCHES))
        self.log.rank(
            "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, "
            f"bs=[{listed}], avail mem={free:.2f} GB"
        )
        part = self.stages.decode_graphs / len(DECODE_BATCHES)
        for number, size in enumerate(reversed(DECODE_BATCHES), start=1):
            left = free - half * number / len(DECODE_BATCHES)
            what = f"Capturing batches (bs={size} avail_mem={left:.2f} GB)"
            self.log.progress(what, number, len(DECODE_BATCHES), number * part)
            await self.clock.sleep(part)
        self.log.rank(
            f"Capture target decode CUDA graph end. elapsed={self.stages.decode_graphs:.2f} s, "
            f"mem usage={half:.2f} GB, avail mem={free - half:.2f} GB."
        )

    def _summary(self, memory: RankMemory) -> None:
        context = context_tokens(self.arguments)
        self.log.rank(
            f"max_total_num_tokens={memory.pool_tokens}, "
            f"chunked_prefill_size={self.arguments.values['chunked_prefill_size']}, "
            f"max_prefill_tokens={self.arguments.values['max_prefill_tokens']}, "
            f"max_running_requests={max_running(self.arguments, memory.pool_tokens)}, "
            f"context_len={context}, available_gpu_mem={memory.after_graphs:.2f} GB"
        )

    @property
    def _width(self) -> int:
        return value_bytes(self.arguments.text("kv_cache_dtype"))


def context_tokens(arguments: ServerArguments) -> int:
    """Return the context length, tokens."""
    return arguments.maybe_number("context_length") or 262_144


def max_running(arguments: ServerArguments, pool_tokens: int) -> int:
    """Return max_running_requests as SGLang 0.5.23 works it out.

    Source: SGLang 0.5.23, unset: between 2048 and 4096, at most half the pool's tokens.
    """
    given = arguments.maybe_number("max_running_requests")
    estimate = max(2048, min(4096, int(pool_tokens / context_tokens(arguments) * 512)))
    return max(1, min(given or estimate, pool_tokens // 2))


def startup_failure(memory_error: str) -> str:
    """Return what a scheduler prints when its start fails."""
    return (
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "sglang/srt/managers/scheduler.py", line 1, in run_scheduler_process\n'
        f"{memory_error}\n"
    )


def _as_server_args(arguments: ServerArguments) -> str:
    hidden = {"api_key", "admin_api_key"}
    fields = ", ".join(
        f"{name}={'******' if name in hidden and value else repr(value)}"
        for name, value in arguments.values.items()
    )
    return f"ServerArgs({fields})"
