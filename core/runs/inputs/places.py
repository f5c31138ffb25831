"""Which files the inputs of a partition are: paths, folders and glob patterns."""

from pathlib import Path

from kvctl.core.domain.errors import RunFileError
from kvctl.core.runs.inputs.columnar import dataset_files

LINE_SUFFIXES = (".jsonl", ".json", ".ndjson")
SUFFIXES = (*LINE_SUFFIXES, ".parquet", ".arrow")
_PACKED = (".gz", ".zst")


def expand_inputs(patterns: tuple[str, ...], where: str) -> list[Path]:
    """Return the input files of a partition in a stable order, each once.

    Args:
        patterns: Absolute paths, folders or glob patterns.
        where: What they belong to, for messages.

    Raises:
        RunFileError: A path is missing, or a pattern or folder holds no input.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        try:
            files = _expand(pattern)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise RunFileError(f"{where}: {pattern!r}: cannot be looked up: {said}") from error
        if not files:
            raise RunFileError(f"{where}: no input at {pattern}: correct `input` of the run file")
        found.update(dict.fromkeys(files))
    return list(found)


def _expand(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return [path]
    if path.exists():
        raise ValueError("neither a file nor a folder")
    matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    files = [[m] if m.is_file() else _in_folder(m) for m in matches if m.is_file() or m.is_dir()]
    return [file for group in files for file in group]


def _in_folder(folder: Path) -> list[Path]:
    saved = dataset_files(folder)
    if saved is not None:
        return saved
    return sorted(f for f in folder.iterdir() if f.is_file() and is_input(f))


def is_input(file: Path) -> bool:
    """Return whether a file of a folder is taken for an input, by its name."""
    suffixes = [s for s in file.suffixes if s not in _PACKED]
    return bool(suffixes) and suffixes[-1] in SUFFIXES and not file.name.startswith(".")


def partition_name(file: Path) -> str:
    """Return the name of the partition that a file is: without its suffixes."""
    name = file.name
    while Path(name).suffix in (*SUFFIXES, *_PACKED):
        name = Path(name).stem
    return name
