"""Rows of a data set, one after the other: from JSON lines, parquet files or the Hugging Face hub.

A row that cannot be read is an item of its own and the rest goes on; only a data set that cannot be opened
or read to its end raises. Memory holds a batch of rows, never the file. The hub is asked only when a source
names it, through `datasets`, without code of the data set's own.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_BATCH_ROWS = 256
_FILES = (".jsonl", ".ndjson", ".json", ".parquet")


class SourceError(Exception):
    """The data set cannot be opened; the message says why and what to change."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """Names a data set."""

    path: str
    """A .jsonl, .json or .parquet file, a folder of parquet files, or an id of the hub (`owner/name`)."""
    split: str = "train"
    """Of the hub, or of a folder whose files are named after their splits."""
    revision: str = ""
    """Commit, tag or branch on the hub; empty for its newest."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in the place of a row."""

    reason: str
    """One line for a person."""


type Row = Mapping[str, Any]


def read_rows(source: DataSource) -> Iterator[Row | Unreadable]:
    """The rows in order. Raises SourceError at once when the source cannot be opened."""
    path = Path(source.path).expanduser()
    if path.is_dir():
        return _parquet(_files_of_split(path, source.split))
    if path.suffix in _FILES:
        if not path.is_file():
            raise SourceError(f"{source.path} does not exist")
        if path.suffix == ".parquet":
            return _parquet([path])
        return _json_array(path) if path.suffix == ".json" else _json_lines(path)
    if path.exists():
        raise SourceError(
            f"{source.path} is neither a {', '.join(_FILES)} file nor a folder of parquet files"
        )
    return _hub(source)


def _files_of_split(folder: Path, split: str) -> list[Path]:
    """As the hub stores them: `<split>-00000-of-00001.parquet`, in the folder or in `data/`."""
    found = sorted(path for place in (folder, folder / "data") for path in place.glob("*.parquet"))
    named = [path for path in found if path.name.startswith((f"{split}-", f"{split}."))]
    if named or not found:
        found = named
    elif any("-of-" in path.name for path in found):
        splits = sorted({path.name.split("-")[0] for path in found})
        raise SourceError(f"{folder} holds no split {split!r}, but {', '.join(splits)}; set the split")
    if not found:
        raise SourceError(f"{folder} holds no parquet files")
    return found


def _json_lines(path: Path) -> Iterator[Row | Unreadable]:
    try:
        with path.open("rb") as file:  # not text: only a newline ends a row, and one bad byte costs one row
            for line in file:
                if line.strip():
                    yield _json_row(line)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def _json_row(line: bytes) -> Row | Unreadable:
    try:
        loaded: Any = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Unreadable(f"not UTF-8 at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return Unreadable(f"not JSON: {error}")
    return _record(loaded)


def _record(loaded: Any) -> Row | Unreadable:
    if not isinstance(loaded, dict):
        return Unreadable(f"a row is a record, not {type(loaded).__name__}")
    return cast(Row, loaded)


def _json_array(path: Path) -> Iterator[Row | Unreadable]:
    try:
        loaded: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read: {error}; for JSON lines name it .jsonl") from error
    if not isinstance(loaded, list):
        raise SourceError(f"{path} is no list of rows; for JSON lines name it .jsonl")
    return map(_record, cast(list[Any], loaded))


def _parquet(paths: list[Path]) -> Iterator[Row | Unreadable]:
    import polars
    from polars.exceptions import PolarsError

    try:
        frame = polars.scan_parquet(paths)
        frame.collect_schema()
    except (OSError, PolarsError) as error:
        raise SourceError(f"{paths[0]} is no parquet file: {_line(error)}") from error

    def rows() -> Iterator[Row | Unreadable]:
        try:
            for batch in frame.collect_batches(chunk_size=_BATCH_ROWS, maintain_order=True):
                yield from batch.iter_rows(named=True)
        except (OSError, PolarsError) as error:
            raise SourceError(f"{paths[0]} cannot be read to its end: {_line(error)}") from error

    return rows()


def _hub(source: DataSource) -> Iterator[Row | Unreadable]:
    if source.path.count("/") != 1 or source.path.startswith(("/", ".")):
        raise SourceError(f"{source.path} is neither a file that exists nor an id of the hub (owner/name)")
    try:
        import datasets
    except ImportError as error:
        remedy = "install the extra `cpu`, `gpu` or `data`, or give a .jsonl or .parquet file"
        raise SourceError(f"{source.path} is on the hub, `datasets` is not installed: {remedy}") from error
    revision = source.revision or None
    try:
        loaded = datasets.load_dataset(source.path, split=source.split, revision=revision, streaming=True)
    except (OSError, ValueError) as error:  # datasets turns the hub's errors into these
        raise SourceError(_not_from_hub(source, error)) from error

    def rows() -> Iterator[Row | Unreadable]:
        try:
            yield from map(_record, loaded)
        except (OSError, ValueError) as error:
            raise SourceError(_not_from_hub(source, error)) from error

    return rows()


def _not_from_hub(source: DataSource, error: Exception) -> str:
    which = f"{source.path} (split {source.split}, revision {source.revision or 'newest'})"
    remedy = "download it elsewhere and give its .parquet file or folder"
    return f"{which} cannot be had from the hub: {_line(error)}; {remedy}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
