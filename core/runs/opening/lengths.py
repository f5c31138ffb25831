"""What a run on disk tells of its partitions' lengths, read without kvctld and changing nothing."""

from pathlib import Path

from kvctl.core.domain.capacity.ceiling import Lengths
from kvctl.core.domain.launches.plan import Work
from kvctl.core.domain.runs.progress import Lengths as Counted
from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.runs.inputs.partition import ModelFacts
from kvctl.core.runs.opening.locating import readable, refuse_attached
from kvctl.core.runs.opening.opening import index_run
from kvctl.core.runs.outputs.journal import ERRORS, RESPONSES
from kvctl.core.runs.outputs.records import ErrorHead, ResponseHead
from kvctl.core.runs.outputs.scan import ScanNotes, read_stream


def works_on_disk(spec: RunSpec) -> tuple[Work, ...]:
    """Return the partitions of a run that are not done; without lengths where none is answered.

    Raises:
        RunFileError: An input cannot be read, or the answers are another client's.
        KvctlError: The output cannot be read.
    """
    folder = Path(refuse_attached(spec).output)
    with readable(folder):
        indexes = index_run(spec, ModelFacts(), None, is_checked=False)
        rows = {index.spec.name: index.rows for index in indexes}
        counted = {name: Counted() for name in rows}
        settled: set[tuple[str, str]] = set()
        notes = ScanNotes()
        for line in read_stream(folder, RESPONSES, ResponseHead, notes, keeps_tail=True):
            head, key = line.head, (line.head.partition, line.head.id)
            if key not in settled and head.id in rows.get(head.partition, ()):
                settled.add(key)
                counted[head.partition].add(head.completion_tokens, head.prompt_tokens)
        for error in read_stream(folder, ERRORS, ErrorHead, notes, keeps_tail=True):
            if error.head.is_final:
                settled.add((error.head.partition, error.head.id))
    left = {name: sum((name, id) not in settled for id in ids) for name, ids in rows.items()}
    return tuple(_work(name, counted[name], left[name]) for name in rows if left[name])


def _work(name: str, counted: Counted, left: int) -> Work:
    mean = counted.mean
    return Work(
        name,
        Lengths(counted.prompt_mean, counted.count, counted.total, counted.squares),
        None if mean is None else left * mean,
        left,
    )
