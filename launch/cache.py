"""The cache of environments: `python launch/cache.py COMMAND`; see docs/cache.md.

ls shows what is on this node or in the shared store; verify reads all of it again and sets damaged layers
aside; gc says what could go, and removes it when told how much may stay; push, pull and export move
environments between this node, the store and a folder.

Exit status: 0 done, 1 something is missing, damaged or could not be moved, 2 the command line is wrong (no
store is named where one is needed or its address is none, an unknown option or environment, a cache folder
that does not exist, a folder to make that exists already), 130 interrupted.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rich.console import Console

from launch.cache_show import PackingBar, list_node, list_store, verify_node, verify_store
from launch.config_compose import ROOT
from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK
from launch.out_console import OutConsole
from sandbox.cache import EnvCache, env_path, read_record
from sandbox.cache_evict import GRACE_S, evict, would_evict
from sandbox.cache_layer import read_info
from sandbox.errors import CacheError, StoreAddressError
from sandbox.store import Store
from sandbox.store_pack import FORMS
from sandbox.store_push import Pushed, copy_envs, pull_record, push_envs
from sandbox.types import EnvSpec

GIB = 1 << 30
MAX_GIB = float(1 << 30)
"""An exbibyte: more is a slip of the keyboard."""


type Run = Callable[[argparse.Namespace, Console], int]


class UsageError(Exception):
    """The command line cannot be followed; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status."""
    options = _parser().parse_args(arguments)
    console = OutConsole(soft_wrap=True, highlight=False, markup=False)
    options.cache_dir = options.cache_dir.absolute()
    try:
        return options.run(options, console)
    except (UsageError, StoreAddressError) as error:
        print(f"launch/cache.py {options.command}: {error}", file=sys.stderr)
        return BAD_CONFIG
    except BrokenPipeError:  # nobody reads any more: launch.entry ends the command
        raise
    except (CacheError, OSError) as error:
        print(f"launch/cache.py {options.command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"launch/cache.py {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python launch/cache.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared = argparse.ArgumentParser(add_help=False)
    default = Path(os.environ.get("SWE_CACHE_DIR") or ROOT / ".cache")
    shared.add_argument(
        "--cache-dir", type=Path, default=default, metavar="DIR",
        help="this node's cache (default: SWE_CACHE_DIR, else .cache of the repository)",
    )  # fmt: skip
    shared.add_argument(
        "--store", default=os.environ.get("SWE_STORE"), metavar="URL",
        help="shared store: a folder or file://, s3://, ... (default: SWE_STORE)",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[shared], help=about)
        command.set_defaults(run=run)
        return command

    add("ls", _ls, "what is on this node, or with --store in the store")
    _verify_options(add("verify", _verify, "read everything again and compare digests"))
    _gc_options(add("gc", _gc, "remove the layers that were wanted longest ago"))
    push = add("push", _push, "put environments of this node into the store")
    _choice(push)
    push.add_argument(
        "--form", choices=FORMS, default="tar.zst", help="how layers are packed (default: %(default)s)"
    )
    _choice(add("pull", _pull, "fetch environments now, and their newest records"))
    export = add("export", _export, "a store of chosen environments in a new folder")
    _choice(export)
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder, which must not exist")
    export.add_argument("--form", choices=FORMS, default="tar.zst", help="as for push; not with --store")
    return parser


def _verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="only these layers (default: all)")
    parser.add_argument("--repair", action="store_true", help="fetch it again, or remove it (--in-store)")
    parser.add_argument(
        "--in-store", action="store_true", help="the store's files instead of this node's layers"
    )


def _gc_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-gib", type=float, metavar="GIB",
        help="remove until so much is left; 0: all that may go (default: only say what that would be)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.add_argument(
        "--grace-s", type=float, default=GRACE_S, metavar="S", help="spare what was wanted so lately"
    )
    parser.add_argument(
        "--unstored", action="store_true", help="also what no store is known to hold: it must be built again"
    )


def _choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="*", metavar="KEY", help="environments (instance ids); default: all")
    parser.add_argument("--tasks", type=Path, metavar="FILE", help="those of a task file (JSONL)")


def _store(options: argparse.Namespace) -> Store:
    if not options.store:
        raise UsageError("no store is named: give --store URL, or set SWE_STORE")
    return Store(options.store)


def _here(options: argparse.Namespace) -> Path:
    """This node's cache. Raises UsageError when there is none: a slip in its name must not look like an empty
    cache that is all right."""
    if not options.cache_dir.is_dir():
        raise UsageError(
            f"there is no cache folder {options.cache_dir}: correct --cache-dir or SWE_CACHE_DIR, "
            "or fill it: python launch/prepare.py, or: python launch/cache.py pull"
        )
    return options.cache_dir


def _keys(options: argparse.Namespace, known: Sequence[str]) -> list[str]:
    """The chosen environments. Raises UsageError when one is unknown, CacheError when there is none."""
    chosen = list(options.keys)
    if options.tasks is not None:
        chosen += _task_keys(options.tasks)
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise UsageError(f"no such environment: {', '.join(unknown[:5])}{more}")
    if not (chosen or known):
        raise CacheError("there are no environments; run: python launch/prepare.py")
    return list(dict.fromkeys(chosen or known))


def _task_keys(path: Path) -> list[str]:
    from recipes.swe.tasks import TaskFileError, load_tasks

    try:
        return [task.env.key for task in load_tasks(path)]
    except TaskFileError as error:
        raise CacheError(str(error)) from error


def _known_here(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "envs").glob("[!.]*.json"))


def _ls(options: argparse.Namespace, console: Console) -> int:
    if options.store:
        list_store(_store(options), console)
    else:
        list_node(_here(options), _known_here(options.cache_dir), console)
    return OK


def _in_store(options: argparse.Namespace, console: Console) -> int:
    root = options.cache_dir
    return verify_store(_store(options), options.layers, console, root=root, repair=options.repair)


def _verify(options: argparse.Namespace, console: Console) -> int:
    if options.in_store:
        return FAILED if _in_store(options, console) else OK
    store = _store(options) if options.repair else None
    return FAILED if verify_node(_here(options), options.layers, store, console) else OK


def _gc(options: argparse.Namespace, console: Console) -> int:
    max_gib = options.max_gib or 0.0
    if not (0 <= max_gib <= MAX_GIB and 0 <= options.grace_s < math.inf):  # nan is in no range
        raise UsageError(f"--max-gib is 0 to {MAX_GIB:.0f}, --grace-s a number of seconds, not negative")
    limit, dry = int(max_gib * GIB), options.dry_run or options.max_gib is None
    act = would_evict if dry else evict
    done = act(_here(options), limit, grace_s=options.grace_s, unstored=options.unstored)
    verb = "would be removed" if dry else "removed"
    for name in done.layers:
        console.print(f"{name} {verb}")
    console.print(f"{len(done.layers)} layers {verb}: {done.freed_bytes} bytes; {done.left_bytes} left")
    if done.left_bytes > limit:
        console.print("the rest is in use, was wanted a moment ago, or is in no store (--unstored)")
    if options.max_gib is None:
        console.print("nothing was removed; say how much may stay: --max-gib GIB (0: all of these go)")
    return OK


def _push(options: argparse.Namespace, console: Console) -> int:
    store = _store(options)
    keys = _keys(options, _known_here(_here(options)))
    _say_pushed(_pack_into(store, keys, options, console, mark=True), store, console)
    return OK


def _pack_into(
    store: Store, keys: list[str], options: argparse.Namespace, console: Console, *, mark: bool
) -> Pushed:
    """Pack what the store lacks, and show how far that is."""
    root: Path = options.cache_dir
    names = {name for key in keys for name in read_record(env_path(root, key)).layers}
    total = sum(read_info(root, name).tree_bytes for name in names)
    with PackingBar(console, total) as bar:
        form = options.form
        return push_envs(root, keys, store, form=form, say=bar.say, mark=mark, progress=bar.advance)


def _pull(options: argparse.Namespace, console: Console) -> int:
    store, root = _store(options), options.cache_dir
    cache, failed, size = EnvCache(root, store=store), 0, 0
    keys = _keys(options, store.names("envs"))
    for key in keys:
        try:
            pull_record(root, store, key)
            size += cache.ensure(EnvSpec(key)).fetched_bytes
        except CacheError as error:
            failed += 1
            print(f"launch/cache.py pull: {key}: {error}", file=sys.stderr)
    console.print(f"{len(keys) - failed} of {len(keys)} environments are here; {size} bytes were fetched")
    return FAILED if failed else OK


def _export(options: argparse.Namespace, console: Console) -> int:
    if options.out.exists():
        raise UsageError(f"{options.out} exists already")
    target = Store(options.out.absolute().as_uri())
    if options.store:
        source = _store(options)
        done = copy_envs(source, target, _keys(options, source.names("envs")), say=console.print)
    else:
        keys = _keys(options, _known_here(_here(options)))
        done = _pack_into(target, keys, options, console, mark=False)
    _say_pushed(done, target, console)
    return OK


def _say_pushed(done: Pushed, store: Store, console: Console) -> None:
    console.print(
        f"{done.envs} environments of {done.layers} layers are in {store.url}; "
        f"{done.new_layers} layers, {done.new_bytes} bytes were written now"
    )


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
