"""The composition root: the `kvctl` command; it alone sees core and tui, each imported late."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvctl.core.cli.panel import PanelOptions
    from kvctl.core.daemon.feed import Feed


def main() -> int:
    """Run the `kvctl` command and return its exit status."""
    if not (Path(__file__).parent / "core").is_dir():
        # An archive that does not keep links (zip) leaves text files in their place.
        print(
            "kvctl: this copy is incomplete: src/kvctl/core is not a folder; "
            "install from git, a tar.gz or a wheel",
            file=sys.stderr,
        )
        return 1
    from kvctl.core.cli.main import run

    return run(sys.argv[1:], os.environ, _open_panel)


def _open_panel(feed: "Feed", options: "PanelOptions") -> int:
    from kvctl.tui.app import run_panel

    return run_panel(
        feed,
        ascii=options.is_ascii,
        no_mouse=not options.has_mouse,
        operator=options.operator,
        editor=options.editor,
    )


if __name__ == "__main__":
    sys.exit(main())
