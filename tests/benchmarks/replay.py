"""Recorded loads of real engines beside the simulator under the same load.

    python -m tests.benchmarks.replay

Prints the tables of results/replay.md; exit status 1 if a window is outside the bound.
Deterministic: it reads recordings and measures no time of this host.
"""

import sys

from tests.fakes.replayed import (
    FITTED_ON,
    RECORDINGS,
    Compared,
    Recording,
    bf16_law,
    compare,
    fp8_law,
    replay,
)

BOUND = 0.10
HEADS = ("recording", "window, s", "running", "ratio", "token usage", "ratio", "tok/s", "ratio")


def _row(compared: Compared) -> str:
    real, simulated = compared.recorded, compared.simulated
    cells = [compared.recording.name, f"{compared.begin_s:.0f}-{compared.end_s:.0f}"]
    for form, name in ((".1f", "running"), (".3f", "usage"), (".0f", "tokens_per_s")):
        seen, ours = getattr(real, name), getattr(simulated, name)
        cells += [f"{seen:{form}} / {ours:{form}}", f"{ours / seen:.3f}"]
    return _cells(*cells)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _errors(compared: Compared) -> list[float]:
    real, simulated = compared.recorded, compared.simulated
    return [
        abs(simulated.running / real.running - 1.0),
        abs(simulated.usage / real.usage - 1.0),
        abs(simulated.tokens_per_s / real.tokens_per_s - 1.0),
    ]


def _show(recordings: tuple[Recording, ...]) -> float:
    """Print the windows and the retractions; return the largest error."""
    replays = [(recording, replay(recording)) for recording in recordings]
    windows = [window for recording, done in replays for window in compare(recording, done)]
    print(_cells(*HEADS), _cells(*["---"] * len(HEADS)), *map(_row, windows), sep="\n")
    print("\n| recording | retracted, recorded / simulated |\n| --- | --- |")
    for recording, done in replays:
        print(_cells(recording.name, f"{recording.retracted} / {done.retracted}"))
    return max(error for window in windows for error in _errors(window))


def main() -> int:
    """Print everything; return 1 if a window is more than 10 % off."""
    print(f"bf16, from {FITTED_ON}: {bf16_law()}\nfp8: {fp8_law()}\n")
    largest = _show(RECORDINGS)
    print(f"\nLargest error of a window: {largest:.1%}")
    return int(largest > BOUND)


if __name__ == "__main__":
    sys.exit(main())
