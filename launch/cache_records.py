"""What is wrong with records of environments; the half of `launch/cache.py verify` that reads no layers."""

from collections.abc import Collection
from pathlib import Path

from sandbox.cache_record import parse_record, read_record
from sandbox.errors import CacheError
from sandbox.store import Store


def node_record_problems(root: Path) -> list[str]:
    """A line for each record of this node that cannot be read.

    One whose layers are not here is no problem: an eviction leaves it, and the store brings them back."""
    problems: list[str] = []
    for path in sorted((root / "envs").glob("[!.]*.json")):
        try:
            read_record(path)
        except (CacheError, OSError) as error:
            remedy = f"or fetch it again: python launch/cache.py pull {path.stem}"
            problems.append(f"record {path.stem}: {error}; {remedy}")
    return problems


def store_record_problems(store: Store, layers: Collection[str]) -> list[str]:
    """A line for each record of the store that cannot be read, or names a layer that is not there. `layers`:
    what is known to be in the store. Raises CacheError when the store does not answer."""
    problems: list[str] = []
    for key in store.names("envs"):
        text = store.read(f"envs/{key}.json")
        problem = _store_problem(store, text, layers) if text is not None else ""
        if problem:
            problems.append(f"record {key}: {problem}; push it again from a node that has it")
    return problems


def _store_problem(store: Store, text: bytes, layers: Collection[str]) -> str:
    try:
        record = parse_record("the record", text)
    except CacheError as error:
        return f"it is damaged ({error.__cause__ or error})"
    lacks = [name for name in record.layers if name not in layers and not _is_there(store, name)]
    return f"it names {', '.join(lacks)}, which the store lacks" if lacks else ""


def _is_there(store: Store, name: str) -> bool:
    """Asked of the store itself: the layer may have been pushed since the store was listed."""
    return store.read(f"layers/{name}.json") is not None
