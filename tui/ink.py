"""Ink to terminal style: attributes and the 16 colours, so that every theme and SSH shows it."""

from rich.style import Style

from kvctl.tui.present.line import Ink

STYLES: dict[Ink, Style] = {
    Ink.PLAIN: Style(),
    Ink.DIM: Style(dim=True),
    Ink.BOLD: Style(bold=True),
    Ink.REVERSE: Style(reverse=True, bold=True),
    Ink.FRAME: Style(dim=True),
    Ink.TITLE: Style(bold=True),
    Ink.KEY: Style(bold=True, color="cyan"),
    Ink.BAR: Style(color="cyan"),
    Ink.SPARK: Style(color="cyan"),
    Ink.GOOD: Style(color="green"),
    Ink.WARN: Style(bold=True, color="yellow"),
    Ink.BAD: Style(bold=True, color="red"),
    Ink.ALARM: Style(reverse=True, bold=True, color="red"),
    Ink.CURSOR: Style(reverse=True),
}
