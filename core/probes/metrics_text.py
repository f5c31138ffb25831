"""The text of /metrics to a reading, through prometheus_client's parser.

The parser raises on the first line it cannot read. Then every line is parsed alone, so a garbage
line costs itself only; bad lines are counted.
"""

import re
from collections.abc import Iterable, Iterator

from prometheus_client.parser import text_string_to_metric_families

from kvctl.core.domain.telemetry.metrics import Sample, merge_samples
from kvctl.core.domain.telemetry.readings import MetricsReading

_TYPE = re.compile(r"^# TYPE (\S+) (\w+)", re.MULTILINE)
_UNREADABLE = (ValueError, IndexError, KeyError, TypeError, AttributeError)
"""What the parser was seen to raise on junk."""


def parse_metrics(text: str, at: float) -> MetricsReading:
    """Return the merged reading of a /metrics answer; never raises."""
    types = dict(_TYPE.findall(text))
    try:
        return merge_samples(list(_samples(text)), types, at)
    except _UNREADABLE:
        samples, bad_lines = _line_by_line(text.splitlines())
        return merge_samples(samples, types, at, bad_lines)


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Sample(sample.name, sample.labels, float(sample.value))


def _line_by_line(lines: Iterable[str]) -> tuple[list[Sample], int]:
    samples: list[Sample] = []
    bad_lines = 0
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            samples.extend(_samples(line + "\n"))
        except _UNREADABLE:
            bad_lines += 1
    return samples, bad_lines
