"""What an export wrote and what it left out, in figures and in one line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """One partition of an export."""

    name: str
    rows: int | None
    """Rows that should have an answer; None: not known without the inputs."""
    answered: int
    written: int


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written and what was left out."""

    source: str
    """The run's output folder."""
    format: str
    order: str
    written: int
    partitions: tuple[PartitionCount, ...]
    elsewhere: int
    """Answers from `done_from` files that were chosen."""
    duplicates: int
    """Later records of rows that have one."""
    filtered: int
    """Answers that the condition left out."""
    unusable: dict[str, int]
    """Answers that do not hold what the format needs, by reason."""
    text_prompts: int
    """Lines with `prompt` in place of `input_ids`: it was sent as text."""
    unknown: int
    """Records of no row of the inputs."""
    damaged: int
    """Lines that cannot be read or are no accepted answer."""
    in_later_turns: int
    """Answers of earlier turns: the line of a conversation's last turn holds them."""
    torn: int
    """Torn last lines; while the run goes on, the line being written."""

    @property
    def rows(self) -> int | None:
        """Rows that should have an answer; None: not known without the inputs."""
        counts = [partition.rows for partition in self.partitions]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def unanswered(self) -> int | None:
        """Rows without an answer."""
        answered = sum(partition.answered for partition in self.partitions)
        return None if self.rows is None else max(0, self.rows - answered)

    def line(self, target: str) -> str:
        """Return the whole report in one line."""
        of = "" if self.rows is None else f" of {self.rows:,} rows"
        each = ", ".join(f"{p.name} {p.written:,}" for p in self.partitions)
        line = f"exported {self.written:,}{of} as {self.format} to {target} ({each or 'no rows'})"
        if self.elsewhere:
            line += f", {self.elsewhere:,} of them from done_from files"
        left_out = [
            (self.unanswered or 0, "not answered"),
            (self.filtered, "by --where"),
            (self.duplicates, "duplicates"),
            (sum(self.unusable.values()), f"that do not fit {self.format}"),
            (self.in_later_turns, "earlier turns that later lines hold"),
            (self.unknown, "of no input row"),
            (self.damaged, "damaged"),
            (self.torn, "torn at the end"),
        ]
        told = ", ".join(f"{count:,} {what}" for count, what in left_out if count)
        return f"{line}; left out: {told}" if told else line

    def warnings(self) -> list[str]:
        """Return what a reader of the lines may not expect, each in one line."""
        found = [f"{count:,} answers left out: {why}" for why, count in self.unusable.items()]
        if self.text_prompts:
            found.append(
                f"{self.text_prompts:,} prompts were sent as text: their `input_ids` are null, "
                "`prompt` holds them"
            )
        return found
