"""Proposes bugs for the local task set with SWE-smith's procedural modifiers and writes the committed list.

A maintainer's tool: `python -m recipes.swe.tasks_bugs` (extra `data`) unpacks nothing and runs no test of its
own; it reads the repository layers that `launch/prepare.py` built, proposes small bugs, lets
`tasks_validate` judge them in sandboxes, and keeps a varied choice. Users only read its result.
"""

import argparse
import ast
import asyncio
import difflib
import hashlib
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from recipes.swe.tasks_patch import replacements, split_lines
from recipes.swe.tasks_projects import Bug, Project, load_bugs, load_projects

SEEDS = range(4)
LIKELIHOOD = 0.15
"""Low, so that most proposals change one place."""
MAX_LINES = 3
"""Most lines before and after, so that one short replacement fixes the bug."""
MAX_COLUMNS = 88
MAX_FAILING = 25
"""Bugs that break more tests are less a bug than an outage."""
HEADER = """\
# Bugs of the local task set, proposed by SWE-smith's procedural modifiers and validated.
# Written by `python -m recipes.swe.tasks_bugs`; read by `python launch/prepare.py`. A bug replaces lines
# start_line..end_line of the clean file (sha256) by new_lines. No other source is kept here.
"""


def propose(project: Project, repository: Path, seed: int) -> Iterator[Bug]:
    """Small bugs in the project's own modules, in random order, made as they are asked for. Needs the
    extra `data`."""
    from swesmith.bug_gen.adapters.python import get_entities_from_file_py
    from swesmith.bug_gen.procedural.python import MODIFIERS_PYTHON

    tries: list[tuple[str, str, Any, type, int]] = []
    for file in source_files(repository, project):
        text = file.read_bytes().decode("utf-8")
        entities: list[Any] = []
        get_entities_from_file_py(entities, str(file))
        path = file.relative_to(repository).as_posix()
        kinds = [type(modifier) for modifier in MODIFIERS_PYTHON]
        tries += [(path, text, *rest) for rest in itertools.product(entities, kinds, SEEDS)]
    random.Random(seed).shuffle(tries)
    seen: set[tuple[object, ...]] = set()
    for path, text, entity, kind, modifier_seed in tries:
        modifier = kind(likelihood=LIKELIHOOD, seed=seed + modifier_seed)
        rewrite = modifier.modify(entity) if modifier.can_change(entity) else None
        bug = to_bug(project, path, text, entity, rewrite) if rewrite is not None else None
        if bug is None or (bug.path, bug.start_line, bug.end_line, bug.new_lines) in seen:
            continue
        seen.add((bug.path, bug.start_line, bug.end_line, bug.new_lines))
        yield bug


def source_files(repository: Path, project: Project) -> list[Path]:
    """Python modules that are neither tests nor packaging."""
    tests = {repository / file for file in project.test_files}
    folders = {"tests", "test", "docs", "examples", "fuzz"}
    skipped = folders | {"setup.py", "conftest.py", "__main__.py", "cli.py"}
    return [
        file
        for file in sorted(repository.rglob("*.py"))
        if file not in tests
        and not skipped & set(file.relative_to(repository).parts)
        and not file.name.startswith("test")
    ]


def to_bug(project: Project, path: str, text: str, entity: Any, rewrite: Any) -> Bug | None:
    """The proposal as a small change of lines; None when it is too large, or no change."""
    lines = split_lines(text)
    margin = " " * (entity.indent_level * entity.indent_size)
    body = [f"{margin}{line}" if line.strip() else line for line in str(rewrite.rewrite).split("\n")]
    first, last = entity.line_start - 1, entity.line_end
    changed = [f"{line}\n" for line in body]
    matcher = difflib.SequenceMatcher(a=lines[first:last], b=changed, autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    if len(blocks) != 1:
        return None
    _, old_first, old_last, new_first, new_last = blocks[0]
    old_first, old_last = first + old_first, first + old_last
    new_lines = changed[new_first:new_last]
    touched = [*lines[old_first:old_last], *new_lines]
    if max(old_last - old_first, len(new_lines)) > MAX_LINES or old_first == old_last:
        return None
    if any(len(line.rstrip("\n")) > MAX_COLUMNS for line in touched):
        return None
    bugged = "".join([*lines[:old_first], *new_lines, *lines[old_last:]])
    if not _fix_is_short(bugged, text) or not _compiles(bugged):
        return None
    modifier = str(rewrite.strategy)
    return Bug(
        instance_id=f"{project.repo.removeprefix('swesmith/')}.{modifier}__{rewrite.get_hash()}",
        project=project.name,
        path=path,
        modifier=modifier,
        start_line=old_first + 1,
        end_line=old_last,
        new_lines=tuple(line.rstrip("\n") for line in new_lines),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        symbol=symbol_at(text, old_first + 1),
    )


def _fix_is_short(bugged: str, clean: str) -> bool:
    edits = replacements(bugged, clean)
    if len(edits) != 1:
        return False
    lines = [side.split("\n") for side in edits[0]]
    return all(len(side) <= MAX_LINES and max(map(len, side)) <= MAX_COLUMNS for side in lines)


def _compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def symbol_at(text: str, line: int) -> str:
    """Dotted name of the innermost function or class that holds the line; "module" outside of any."""
    names: list[str] = []
    nodes: Sequence[ast.AST] = ast.parse(text).body
    while True:
        inside = [
            node
            for node in nodes
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        if not inside:
            return ".".join(names) or "module"
        if isinstance(inside[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(inside[0].name)
        nodes = list(ast.iter_child_nodes(inside[0]))


async def choose(
    proposals: Iterator[Bug], count: int, judge: Callable[[Bug], Awaitable[int | None]]
) -> list[Bug]:
    """The first `count` proposals that hold up, no two in one function, few of one modifier.

    `judge` gives the number of tests that a bug breaks, or None when it is no valid task."""
    chosen: list[Bug] = []
    places: set[tuple[str, str]] = set()
    modifiers: dict[str, int] = {}
    for bug in proposals:
        if len(chosen) == count:
            break
        place = (bug.path, bug.symbol)
        if place in places or modifiers.get(bug.modifier, 0) >= max(2, count // 3):
            continue
        failing = await judge(bug)
        if failing is None or failing > MAX_FAILING:
            continue
        places.add(place)
        modifiers[bug.modifier] = modifiers.get(bug.modifier, 0) + 1
        chosen.append(bug)
    return chosen


def dump(bugs: Sequence[Bug]) -> str:
    """The committed list as YAML."""
    entries = [
        {
            "instance_id": bug.instance_id,
            "project": bug.project,
            "path": bug.path,
            "symbol": bug.symbol,
            "modifier": bug.modifier,
            "start_line": bug.start_line,
            "end_line": bug.end_line,
            "new_lines": list(bug.new_lines),
            "sha256": bug.sha256,
        }
        for bug in bugs
    ]
    return HEADER + yaml.safe_dump({"bugs": entries}, sort_keys=False, width=200, allow_unicode=True)


async def main_async(options: argparse.Namespace) -> None:
    """Proposes, judges and writes the list."""
    from recipes.swe.build_types import BuildSettings
    from recipes.swe.tasks_build import ProjectBuilder
    from recipes.swe.tasks_fetch import find_index
    from recipes.swe.tasks_validate import Validator
    from sandbox.cache import layer_dir
    from sandbox.mini import MiniBackend

    projects = load_projects(options.projects)
    root: Path = options.cache.absolute()
    wanted: list[str] = options.project or list(projects)
    chosen: dict[str, list[Bug]] = {}
    if options.output.exists():
        for bug in load_bugs(options.output, projects):
            if bug.project not in wanted:
                chosen.setdefault(bug.project, []).append(bug)
    async with MiniBackend() as backend:
        builder = ProjectBuilder(BuildSettings(root, find_index(os.environ, Path.home())), backend)
        validator = Validator(root, backend, builder)

        async def work(project: Project) -> None:
            repository = layer_dir(root, (await builder.env(project)).repo) / "root" / "testbed"

            async def judge(bug: Bug) -> int | None:
                verdict = await validator.validate(project, bug)
                print(f"{bug.instance_id} {bug.symbol}: {verdict.status} {verdict.reason}", flush=True)
                return len(verdict.row.fail_to_pass) if verdict.row is not None else None

            proposals = propose(project, repository, options.seed)
            chosen[project.name] = await choose(proposals, options.count, judge)
            done = [bug for name in projects for bug in chosen.get(name, [])]
            options.output.write_text(dump(done), "utf-8")
            print(f"{project.name}: {len(chosen[project.name])} bugs, {len(done)} in all", flush=True)

        async with asyncio.TaskGroup() as group:
            for name in wanted:
                group.create_task(work(projects[name]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    data = Path(__file__).resolve().parents[2] / "configs" / "data"
    parser.add_argument("--projects", type=Path, default=data / "projects.yaml")
    parser.add_argument("--output", type=Path, default=data / "local_bugs.yaml")
    parser.add_argument("--cache", type=Path, default=data.parents[1] / ".cache")
    parser.add_argument("--count", type=int, default=6, help="bugs per project")
    parser.add_argument("--project", action="append", help="only this one; others keep their bugs")
    parser.add_argument("--seed", type=int, default=24)
    asyncio.run(main_async(parser.parse_args()))


if __name__ == "__main__":
    main()
