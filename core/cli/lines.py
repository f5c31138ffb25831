"""Lines of plain text: text from outside made harmless, and tables; pure."""

from collections.abc import Iterator, Sequence

from kvctl.core.domain.logs.text import LIMIT, clean_line

UNKNOWN = "–"


def one_line(text: str, limit: int = LIMIT) -> str:
    """Return text from outside as part of a line; a carriage return cannot hide the rest of it."""
    return clean_line(text.replace("\r", " "), limit)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows under their head as a Markdown table; a bar in a cell stays a bar."""
    for number, row in enumerate([head, *rows]):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        if number == 0:
            yield "|" + " --- |" * len(head)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows under their head, columns as wide as their widest cell."""
    cells = [head, *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(padded).rstrip()
