"""What the operator has chosen to look at; state of the panel alone, never of the host."""

from dataclasses import dataclass

PANES = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True, slots=True)
class View:
    """Choices that change what is drawn and nothing else."""

    zoom: int | None = None
    """Pane that fills the screen, None for the overview."""
    cursor: int = 0
    """Selected row of the zoomed pane."""
    marked: frozenset[tuple[int, int]] = frozenset()
    """Processes marked in the GPU pane: pid and start time."""
    note: int = 0
    """Which verdict is shown, 0 the most urgent."""
    lost: str | None = None
    """Why no snapshots arrive now; None while they do."""
    is_locked: bool = False
    """Read-only: nothing that changes the host is offered."""
    is_held: bool = False
    """The display stands still while data go on."""
    operator: str = ""
    """This panel's own name, so that only others are announced."""
    is_ascii: bool = False
