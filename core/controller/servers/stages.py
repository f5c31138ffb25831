"""The stages of a start, stop or restart: each with its state, time and proof."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kvctl.core.clock import Clock
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.servers.server import Stage, StageState

STOP_STAGES = ("hold run", "harvest", "stop", "free GPUs", "prove clean")
START_STAGES = ("process", "weights", "KV pool", "graphs", "first token")
RESUME_STAGES = ("resume run",)


@dataclass(slots=True)
class StageList:
    """Stages in order; one is doing at a time."""

    clock: Clock
    items: list[Stage] = field(default_factory=list)
    on_begin: Callable[[], None] = lambda: None
    """Called when a stage has begun, before anything of it is done."""

    def plan(self, *names: str) -> None:
        """Replace the list by these steps, all to do."""
        self.items = [Stage(name, StageState.TODO) for name in names]

    def set(self, name: str, **changes: object) -> None:
        """Change fields of one stage."""
        for index, stage in enumerate(self.items):
            if stage.name == name:
                self.items[index] = replace(stage, **changes)  # type: ignore[arg-type]

    def replace(self, stage: Stage) -> None:
        """Put a stage in the place of the one with its name."""
        before = self.doing
        self.items = [stage if item.name == stage.name else item for item in self.items]
        if self.doing not in (None, before):
            self.on_begin()

    def begin(self, name: str, detail: str = "") -> None:
        """Mark a stage as going on."""
        now = self.clock.monotonic()
        self.set(name, state=StageState.DOING, started_at=now, ended_at=None, detail=detail)
        self.on_begin()

    def end(self, name: str, proof: str) -> None:
        """Mark a stage as done with what was observed."""
        self.set(name, state=StageState.DONE, ended_at=self.clock.monotonic(), detail=proof)

    def skip(self, name: str, why: str) -> None:
        """Mark a stage as not needed."""
        self.set(name, state=StageState.SKIPPED, ended_at=self.clock.monotonic(), detail=why)

    def fail(self, name: str, why: str) -> None:
        """Mark a stage as failed."""
        self.set(name, state=StageState.FAILED, ended_at=self.clock.monotonic(), detail=why)

    @contextmanager
    def step(self, name: str, detail: str = "") -> Iterator[list[str]]:
        """Run one stage; append its proof to the yielded list; a raised error fails it."""
        proof: list[str] = []
        self.begin(name, detail)
        try:
            yield proof
        except KvctlError as error:
            self.fail(name, str(error))
            raise
        else:
            self.end(name, "; ".join(proof))
        finally:
            if self.doing == name:
                self.fail(name, "cancelled")

    @property
    def doing(self) -> str | None:
        """Name of the stage that goes on now."""
        return next((s.name for s in self.items if s.state is StageState.DOING), None)

    def proofs(self) -> tuple[str, ...]:
        """Return one line for each finished stage."""
        return tuple(
            f"{s.name}: {s.detail or s.state.value}"
            for s in self.items
            if s.state not in (StageState.TODO, StageState.DOING)
        )
