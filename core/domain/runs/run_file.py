"""A run file: what is generated from which inputs, where it is written, how hard it is driven.

How a run file's document becomes a `RunSpec` is `kvctl.core.domain.runs.parse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.run import CeilingPolicy

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


class Turns(StrEnum):
    """Which answers of a conversation are made."""

    LAST = "last"
    """The last one, after the turns as they stand in the input."""
    ALL = "all"
    """One after each user turn, in order, each after the new answers before it; the input's own
    assistant turns are left out."""


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
    turns: Turns = Turns.LAST
    by_file: bool = False
    """Every input file is a partition, named as the file is without its suffixes."""
    by_column: str | None = None
    """Rows are shared among partitions by the text they have under this key."""

    @property
    def is_split(self) -> bool:
        """Whether it becomes several partitions, whose names the inputs give."""
        return self.by_file or self.by_column is not None

    @property
    def max_new_tokens(self) -> int | None:
        """The limit of an answer; None: the server's default, 128."""
        value = self.sampling.get("max_new_tokens")
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """What is set for one partition whose name its inputs give."""

    name: str
    weight: float | None
    sampling: Mapping[str, object]


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
    settings: tuple[PartitionSettings, ...] = ()
    """Of partitions that are named by their inputs."""


class RunFileProblems(RunFileError):
    """Every problem of a run file, each one line with file and key."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep the lines."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
