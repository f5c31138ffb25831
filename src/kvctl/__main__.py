"""The composition root: the `kvctl` command; it alone sees core and tui, each imported late."""

import sys


def main() -> int:
    """Run the `kvctl` command and return its exit status."""
    from kvctl.core.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
