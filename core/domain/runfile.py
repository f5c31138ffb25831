"""A run file: what is generated from which inputs, where it is written, how hard it is driven.

Pure: a parsed TOML document goes in, a `RunSpec` or every problem at once comes out. Reading the
file and resolving paths is `kvctl.core.runs.runfile`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvctl.core.domain.document import Table
from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.run import CeilingPolicy

Document = Mapping[str, object]


class InputFormat(StrEnum):
    """How the rows of an input file are read."""

    AUTO = "auto"
    """By the keys of the first row; what was found is reported."""
    IDS = "ids"
    """`input_ids`, sent as they are."""
    MESSAGES = "messages"
    """`messages`, rendered by the model's chat template."""
    PROMPT = "prompt"
    """`prompt`, `text` or `question`, raw text."""
    CONVERSATIONS = "conversations"
    """`conversations` with `role` and `content`; trailing assistant turns are dropped."""
    SHAREGPT = "sharegpt"
    """`conversations` with `from` and `value`; the same."""
    OPENAI_BATCH = "openai-batch"
    """`custom_id` and `body`."""


class Order(StrEnum):
    """Which partition the next row is taken from."""

    LONGEST = "longest"
    """The one with the longest mean answer so far, until it is through: a short tail."""
    FILE = "file"
    """As they stand in the run file, one after the other."""
    WEIGHTS = "weights"
    """All open ones, in proportion to their weights."""


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """One dataset part."""

    name: str
    inputs: tuple[str, ...]
    """Absolute paths, folders or glob patterns."""
    format: InputFormat = InputFormat.AUTO
    weight: float = 1.0
    sampling: Mapping[str, object] = field(default_factory=dict)
    """SGLang's sampling_params: the run's, with this partition's over them."""
    prompt_key: str | None = None
    """The key that holds the prompt; None: prompt, text or question."""
    as_chat: bool = False
    """A plain prompt is wrapped as one user turn and rendered by the chat template."""

    @property
    def max_new_tokens(self) -> int | None:
        """The limit of an answer; None: the server's default, 128."""
        value = self.sampling.get("max_new_tokens")
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class AttachSpec:
    """Another client's output that is only counted."""

    file: str
    id_key: str = "id"
    partition_key: str = "partition"
    output_tokens_key: str | None = None
    output_ids_key: str | None = None


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One generation job as its run file says it."""

    path: str
    """The run file."""
    name: str
    output: str
    """Absolute path of the output folder; "" for an attached run."""
    servers: tuple[str, ...]
    """URLs or names of managed servers; empty: the only one there is."""
    concurrency: int | None
    """A number is MANUAL, None is AUTO."""
    policy: CeilingPolicy
    pause_above: float
    resume_below: float
    done_from: tuple[str, ...]
    scout: int
    """Answers of every partition that are made first."""
    order: Order
    tokenizer: str | None
    """Folder with tokenizer and chat template; None: the one the server names."""
    partitions: tuple[PartitionSpec, ...]
    attach: AttachSpec | None = None


class RunFileProblems(RunFileError):
    """Every problem of a run file, each one line with file and key."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep the lines."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


_WRONG_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "stop_sequences": "stop",
    "repeat_penalty": "repetition_penalty",
}
_DIRECT_SAMPLING = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "ignore_eos",
)
"""Sampling that a [[partition]] may also state beside its name."""


def parse_run(document: Document, file: str, resolve: Callable[[str], str]) -> RunSpec:
    """Return the run that a run file's document describes.

    Args:
        document: The parsed TOML.
        file: The run file's path, for messages and as its identity.
        resolve: Makes a path of the file absolute.

    Raises:
        RunFileProblems: With every problem found, one a line.
    """
    problems: list[str] = []
    top = Table(document, "", file, problems)
    attach = _attach(top.take("attach"), file, problems, resolve)
    run = Table(top.take("run"), "run", file, problems)
    sampling = _sampling(top.take("sampling"), "sampling", file, problems)
    partitions = _partitions(top.take("partition"), sampling, file, problems, resolve)
    top.close()
    if not partitions and attach is None and not any("partition" in p for p in problems):
        problems.append(f"{file}: partition: at least one [[partition]] is needed")
    spec = _run(run, file, attach, partitions, resolve)
    run.close()
    if problems:
        raise RunFileProblems(problems)
    return spec


def _run(
    run: Table,
    file: str,
    attach: AttachSpec | None,
    partitions: tuple[tuple[PartitionSpec, bool], ...],
    resolve: Callable[[str], str],
) -> RunSpec:
    default = CeilingPolicy.THROTTLE if attach is None else CeilingPolicy.NOTIFY
    output = run.text("output", is_needed=attach is None)
    tokenizer = run.text("tokenizer")
    pause_above = run.number("pause_above", 0.95, 0.05, 1.0)
    resume_below = run.number("resume_below", min(0.80, pause_above), 0.0, 1.0)
    if resume_below > pause_above:
        run.note("resume_below", f"at most pause_above ({pause_above:g})", resume_below)
    has_weights = any(stated for _, stated in partitions)
    return RunSpec(
        path=file,
        name=run.text("name", is_needed=attach is None),
        output=resolve(output) if output else "",
        servers=_servers(run),
        concurrency=_concurrency(run),
        policy=run.choice("on_ceiling", CeilingPolicy, default),
        pause_above=pause_above,
        resume_below=resume_below,
        done_from=tuple(resolve(p) for p in run.texts("done_from")),
        scout=run.whole("scout", 12, 0),
        order=run.choice("order", Order, Order.WEIGHTS if has_weights else Order.LONGEST),
        tokenizer=resolve(tokenizer) if tokenizer else None,
        partitions=tuple(p for p, _ in partitions),
        attach=attach,
    )


def _servers(run: Table) -> tuple[str, ...]:
    one, several = run.text("server"), run.texts("servers")
    if one and several:
        run.note("servers", "either server or servers", list(several))
    found = tuple(s.rstrip("/") for s in ((one,) if one else several))
    if len(set(found)) < len(found):
        run.note("servers", "each server once", list(found))
    return found


def _concurrency(run: Table) -> int | None:
    value = run.take("concurrency")
    if value in (None, "auto"):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    run.note("concurrency", '"auto" or a whole number from 1', value)
    return None


def _sampling(value: object, where: str, file: str, problems: list[str]) -> dict[str, object]:
    table = Table(value, where, file, problems)
    for name, right in _WRONG_NAMES.items():
        if name in table.rest:
            table.note(name, f"SGLang's name for it, {right}", table.take(name))
    _check_sampling(table.rest, table)
    return table.rest


def _check_sampling(sampling: Document, table: Table) -> None:
    tokens = sampling.get("max_new_tokens", 1)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        table.note("max_new_tokens", "a whole number from 1", tokens)
    if sampling.get("n", 1) != 1:
        table.note("n", "1: several answers to a prompt need several ids", sampling["n"])


def _partitions(
    value: object,
    sampling: Document,
    file: str,
    problems: list[str],
    resolve: Callable[[str], str],
) -> tuple[tuple[PartitionSpec, bool], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.append(f"{file}: partition: write [[partition]], with two brackets")
        return ()
    found: list[tuple[PartitionSpec, bool]] = []
    for number, entry in enumerate(value, 1):
        table = Table(entry, f"partition {number}", file, problems)
        spec, stated = _partition(table, sampling, resolve)
        if spec.name and spec.name in {p.name for p, _ in found}:
            table.note("name", "a name of its own", spec.name)
        found.append((spec, stated))
    return tuple(found)


def _partition(
    table: Table, sampling: Document, resolve: Callable[[str], str]
) -> tuple[PartitionSpec, bool]:
    stated = "weight" in table.rest
    own = _sampling(table.take("sampling"), f"{table.where}.sampling", table.file, table.problems)
    own |= {name: table.take(name) for name in _DIRECT_SAMPLING if name in table.rest}
    _check_sampling(own, table)
    spec = PartitionSpec(
        name=table.text("name", is_needed=True),
        inputs=tuple(resolve(p) for p in table.texts("input", is_needed=True)),
        format=table.choice("format", InputFormat, InputFormat.AUTO),
        weight=table.number("weight", 1.0, 0.0, 1e300),
        sampling={**sampling, **own},
        prompt_key=table.text("prompt_key") or None,
        as_chat=table.flag("as_chat"),
    )
    table.close()
    return spec, stated


def _attach(
    value: object, file: str, problems: list[str], resolve: Callable[[str], str]
) -> AttachSpec | None:
    if value is None:
        return None
    table = Table(value, "attach", file, problems)
    output = table.text("file", is_needed=True)
    spec = AttachSpec(
        file=resolve(output) if output else "",
        id_key=table.text("id", "id"),
        partition_key=table.text("partition", "partition"),
        output_tokens_key=table.text("output_tokens") or None,
        output_ids_key=table.text("output_ids") or None,
    )
    table.close()
    return spec
