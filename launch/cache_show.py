"""What `launch/cache.py` prints: layers, environments, sizes, what is damaged, how far a push is."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from launch.cache_records import node_record_problems, store_record_problems
from sandbox.cache_evict import layer_uses
from sandbox.cache_gate import NoGate
from sandbox.cache_layer import (
    content_path,
    has_layer,
    layer_dir,
    list_layers,
    read_info,
    set_aside,
    unmark_stored,
)
from sandbox.cache_lease import Leases
from sandbox.errors import CacheError
from sandbox.store import MANIFEST_REMEDY, Checked, Manifest, Store
from sandbox.store_base import base_problem
from sandbox.store_fetch import Origin, fetch_layer
from sandbox.store_pack import tree_facts
from sandbox.store_push import file_sha256

_STEP = 0.1
"""Share of a push after which a line is printed where there is no terminal for a bar."""


class PackingBar:
    """Shows how much of a push is done: a bar on a terminal, else a line for each tenth. Use as a context."""

    def __init__(self, console: Console, total: int) -> None:
        """`total` bytes are to be packed."""
        columns = (TextColumn("packing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("packing", total=total)
        self._total = total
        self._done = self._said = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, size: int) -> None:
        """From any thread."""
        self._bar.advance(self._task, size)
        with self._lock:
            self._done += size
            due = self._done >= min(self._total, self._said + self._total * _STEP) > self._said
            if self._bar.disable and due:
                self._said = self._done
                self.say(f"packed {self._done} of {self._total} bytes")

    def say(self, line: str) -> None:
        """Print above the bar."""
        self._bar.console.print(line)


def list_node(root: Path, keys: Sequence[str], console: Console) -> None:
    """A line a layer, the one wanted longest ago first, then the sums."""
    table, uses, now = _table("layer", "on disk", "wanted", "state"), layer_uses(root), time.time()
    for use in uses:
        states = [word for word, true in (("in use", use.in_use), ("stored", use.stored)) if true]
        table.add_row(
            use.name, _size(use.disk_bytes), f"{_age(now - use.wanted_at_s)} ago", ", ".join(states)
        )
    if uses:
        console.print(table)
    total = sum(use.disk_bytes for use in uses)
    console.print(f"{len(keys)} environments, {len(uses)} layers, {_size(total)} in {root}")
    aside = sorted(path.name for path in (root / "quarantine").glob("*"))
    if aside:
        console.print(
            f"set aside as damaged, delete when looked at: {root / 'quarantine'}: {', '.join(aside)}"
        )


def list_store(store: Store, console: Console) -> None:
    """A line a layer of a store, then the sums."""
    table, total, full, names = _table("layer", "form", "file", "unpacked"), 0, 0, store.names("layers")
    for name in names:
        manifest = store.manifest(name)
        if manifest is None:
            continue  # removed meanwhile
        form = f"{manifest.form}, difference" if manifest.base else manifest.form
        table.add_row(name, form, _size(manifest.file_bytes), _size(manifest.tree_bytes))
        total, full = total + manifest.file_bytes, full + manifest.tree_bytes
    if names:
        console.print(table)
    envs = len(store.names("envs"))
    console.print(
        f"{envs} environments, {len(names)} layers, {_size(total)} ({_size(full)} unpacked) in {store.url}"
    )


def verify_node(root: Path, layers: Sequence[str], store: Store | None, console: Console) -> int:
    """Compare layers with their digests; damaged ones are set aside, and fetched again from the store if one
    is given. Without `layers` records are looked at too. Returns how much is damaged and not whole again."""
    bad, names = 0, list(layers) or list_layers(root)
    for name in names:
        if not has_layer(root, name):
            bad += 1
            console.print(f"{name}: is not on this node")
            continue
        problem = layer_problem(root, name)
        if not problem:
            continue
        set_aside(root, name, problem)
        line = f"{name}: {problem}; set aside"
        remedy = "fetch it again (--repair --store URL), or run: python launch/prepare.py"
        if store is not None:
            try:
                fetch_layer(root, name, Origin(store, NoGate()))
                line, remedy = f"{line}, fetched again", ""
            except CacheError as error:
                remedy = str(error)
        bad += bool(remedy)
        console.print(f"{line}; {remedy}" if remedy else line)
    unknown = sum(1 for name in names if _digestless(root, name))
    note = f"; {unknown} of an older version have no digest to compare with" if unknown else ""
    problems = [] if layers else node_record_problems(root)
    _say_verified(console, len(names), bad, problems, note)
    return bad + len(problems)


def _say_verified(console: Console, layers: int, bad: int, problems: Sequence[str], note: str = "") -> None:
    """What is wrong with records, and the sums."""
    for line in problems:
        console.print(line)
    records = f", {len(problems)} records damaged" if problems else ""
    console.print(f"{layers} layers verified, {bad} damaged{records}{note}")


def _digestless(root: Path, name: str) -> bool:
    try:
        return read_info(root, name).tree_sha256 is None
    except CacheError:
        return False


def layer_problem(root: Path, name: str) -> str:
    """What is wrong with a layer; '' for nothing. Leased meanwhile: an eviction looks like damage."""
    leases = Leases()
    taken = leases.take([layer_dir(root, name) / "root"])
    try:
        info, content = read_info(root, name), content_path(root, name)
        if content.name == "image":
            right = info.image_sha256 == file_sha256(content)
        else:
            right = info.tree_sha256 in (None, tree_facts(content).sha256)
        if not right:
            return "its content is not what its digest says"
    except (CacheError, OSError) as error:
        return str(error)
    finally:
        leases.release(taken)
    return ""


def verify_store(
    store: Store, layers: Sequence[str], console: Console, *, root: Path, repair: bool = False
) -> int:
    """Read the store's files and compare digests; without `layers` records too. Returns how many are damaged
    or missing.

    `repair`: remove layers that are damaged; a push leaves alone what the store holds. The node `root` is
    told first that they are in no store: its copy may be the last, and must not be evicted."""
    bad, names = 0, _bases_first(store, list(layers) or store.names("layers"))
    for name in names:
        problem = _file_problem(store, name)
        if problem:
            bad += 1
            if repair:
                unmark_stored(root, name)
                store.forget_layer(name)
            done = "removed" if repair else "remove it with --repair"
            console.print(f"{name}: {problem}; {done}, then push it again from a node that has it")
    problems = [] if layers else store_record_problems(store, set(names))
    _say_verified(console, len(names), bad, problems)
    return bad + len(problems)


def _bases_first(store: Store, names: list[str]) -> list[str]:
    """What others are packed against is looked at before them: without it they are damaged too."""

    def rank(name: str) -> bool:
        try:
            manifest = store.manifest(name)
        except CacheError:
            return False
        return manifest is not None and bool(manifest.base)

    return sorted(names, key=rank)


def _file_problem(store: Store, name: str) -> str:
    try:
        manifest: Manifest | None = store.manifest(name)
        if manifest is None:
            return "the store has no such layer"
        with store.open_layer(manifest) as source:
            reader = Checked(source)
            reader.drain()
        problem = reader.problem(manifest)
        base = base_problem(manifest, store) if manifest.base and not problem else ""
        return base if isinstance(base, str) and base else problem
    except CacheError as error:
        return str(error).removesuffix(f"; {MANIFEST_REMEDY}")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="right" if number in (1, 2) else "left")
    return table


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
