"""Parses a run file's document into a `RunSpec`, or into every problem at once.

Pure: reading the file and resolving paths is `kvctl.core.runs.opening.run_file`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvctl.core.domain.document import Table
from kvctl.core.domain.runs.run import CeilingPolicy
from kvctl.core.domain.runs.run_file import (
    AttachSpec,
    Document,
    InputFormat,
    Order,
    PartitionSettings,
    PartitionSpec,
    RunFileProblems,
    RunSpec,
    Turns,
)

_WRONG_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "stop_sequences": "stop",
    "repeat_penalty": "repetition_penalty",
}
_DIRECT_SAMPLING = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "ignore_eos",
)
"""Sampling that a [[partition]] may also state beside its name."""


def parse_run(document: Document, file: str, resolve: Callable[[str], str]) -> RunSpec:
    """Return the run that a run file's document describes.

    Args:
        document: The parsed TOML.
        file: The run file's path, for messages and as its identity.
        resolve: Makes a path of the file absolute.

    Raises:
        RunFileProblems: With every problem found, one a line.
    """
    problems: list[str] = []
    top = Table(document, "", file, problems)
    attach = _attach(top.take("attach"), file, problems, resolve)
    run = Table(top.take("run"), "run", file, problems)
    sampling = _sampling(top.take("sampling"), "sampling", file, problems)
    partitions, settings = _partitions(top.take("partition"), sampling, file, problems, resolve)
    top.close()
    if not partitions and attach is None and not any("partition" in p for p in problems):
        problems.append(f"{file}: partition: at least one [[partition]] is needed")
    spec = _run(run, file, attach, partitions, resolve)
    run.close()
    if problems:
        raise RunFileProblems(problems)
    return replace(spec, settings=settings)


def _run(
    run: Table,
    file: str,
    attach: AttachSpec | None,
    partitions: tuple[tuple[PartitionSpec, bool], ...],
    resolve: Callable[[str], str],
) -> RunSpec:
    default = CeilingPolicy.THROTTLE if attach is None else CeilingPolicy.NOTIFY
    output = run.text("output", is_needed=attach is None)
    tokenizer = run.text("tokenizer")
    pause_above = run.number("pause_above", 0.95, 0.05, 1.0)
    resume_below = run.number("resume_below", min(0.80, pause_above), 0.0, 1.0)
    if resume_below > pause_above:
        run.note("resume_below", f"at most pause_above ({pause_above:g})", resume_below)
    has_weights = any(stated for _, stated in partitions)
    return RunSpec(
        path=file,
        name=run.text("name", is_needed=attach is None),
        output=resolve(output) if output else "",
        servers=_servers(run),
        concurrency=_concurrency(run),
        policy=run.choice("on_ceiling", CeilingPolicy, default),
        pause_above=pause_above,
        resume_below=resume_below,
        done_from=tuple(resolve(p) for p in run.texts("done_from")),
        scout=run.whole("scout", 12, 0),
        order=run.choice("order", Order, Order.WEIGHTS if has_weights else Order.LONGEST),
        tokenizer=resolve(tokenizer) if tokenizer else None,
        partitions=tuple(p for p, _ in partitions),
        attach=attach,
    )


def _servers(run: Table) -> tuple[str, ...]:
    one, several = run.text("server"), run.texts("servers")
    if one and several:
        run.note("servers", "either server or servers", list(several))
    found = tuple(s.rstrip("/") for s in ((one,) if one else several))
    if len(set(found)) < len(found):
        run.note("servers", "each server once", list(found))
    return found


def _concurrency(run: Table) -> int | None:
    value = run.take("concurrency")
    if value in (None, "auto"):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    run.note("concurrency", '"auto" or a whole number from 1', value)
    return None


def _sampling(value: object, where: str, file: str, problems: list[str]) -> dict[str, object]:
    table = Table(value, where, file, problems)
    for name, right in _WRONG_NAMES.items():
        if name in table.rest:
            table.note(name, f"SGLang's name for it, {right}", table.take(name))
    _check_sampling(table.rest, table)
    return table.rest


def _check_sampling(sampling: Document, table: Table) -> None:
    tokens = sampling.get("max_new_tokens", 1)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        table.note("max_new_tokens", "a whole number from 1", tokens)
    if sampling.get("n", 1) != 1:
        table.note("n", "1: several answers to a prompt need several ids", sampling["n"])


def _partitions(
    value: object,
    sampling: Document,
    file: str,
    problems: list[str],
    resolve: Callable[[str], str],
) -> tuple[tuple[tuple[PartitionSpec, bool], ...], tuple[PartitionSettings, ...]]:
    if value is None:
        return (), ()
    if not isinstance(value, list):
        problems.append(f"{file}: partition: write [[partition]], with two brackets")
        return (), ()
    found: list[tuple[PartitionSpec, bool]] = []
    settings: list[PartitionSettings] = []
    has_split = any(_is_split(entry) for entry in value)
    names: set[str] = set()
    for number, entry in enumerate(value, 1):
        table = Table(entry, f"partition {number}", file, problems)
        if has_split and "input" not in table.rest:
            one = _settings(table)
            settings.append(one)
            name = one.name
        else:
            spec, stated = _partition(table, sampling, resolve)
            found.append((spec, stated))
            name = spec.name
        if name and name in names:
            table.note("name", "a name of its own", name)
        names.add(name)
    return tuple(found), tuple(settings)


def _is_split(entry: object) -> bool:
    return isinstance(entry, Mapping) and bool(entry.get("by_file") or entry.get("by_column"))


def _settings(table: Table) -> PartitionSettings:
    has_weight = "weight" in table.rest
    own = _own_sampling(table)
    name = table.text("name", is_needed=True)
    weight = table.number("weight", 1.0, 0.0, 1e300)
    table.close()
    return PartitionSettings(name, weight if has_weight else None, own)


def _own_sampling(table: Table) -> dict[str, object]:
    own = _sampling(table.take("sampling"), f"{table.where}.sampling", table.file, table.problems)
    own |= {name: table.take(name) for name in _DIRECT_SAMPLING if name in table.rest}
    _check_sampling(own, table)
    return own


def _partition(
    table: Table, sampling: Document, resolve: Callable[[str], str]
) -> tuple[PartitionSpec, bool]:
    stated = "weight" in table.rest
    own = _own_sampling(table)
    by_file, by_column = table.flag("by_file"), table.text("by_column") or None
    if by_file and by_column:
        table.note("by_column", "either by_file or by_column", by_column)
    if (by_file or by_column) and "name" in table.rest:
        table.note("name", "no name: the inputs give it", table.take("name"))
    spec = PartitionSpec(
        name=table.text("name", is_needed=not (by_file or by_column)),
        inputs=tuple(resolve(p) for p in table.texts("input", is_needed=True)),
        format=table.choice("format", InputFormat, InputFormat.AUTO),
        weight=table.number("weight", 1.0, 0.0, 1e300),
        sampling={**sampling, **own},
        prompt_key=table.text("prompt_key") or None,
        as_chat=table.flag("as_chat"),
        turns=table.choice("turns", Turns, Turns.LAST),
        by_file=by_file,
        by_column=by_column,
    )
    table.close()
    return spec, stated


def _attach(
    value: object, file: str, problems: list[str], resolve: Callable[[str], str]
) -> AttachSpec | None:
    if value is None:
        return None
    table = Table(value, "attach", file, problems)
    output = table.text("file", is_needed=True)
    spec = AttachSpec(
        file=resolve(output) if output else "",
        id_key=table.text("id", "id"),
        partition_key=table.text("partition", "partition"),
        output_tokens_key=table.text("output_tokens") or None,
        output_ids_key=table.text("output_ids") or None,
    )
    table.close()
    return spec
