"""Repositories from commits, folders and sdists: the right files, no history, and nothing of this machine."""

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recipes.swe.build_source import repo_layer
from recipes.swe.build_types import BuildError, BuildSettings
from recipes.swe.dataset_types import RepoSource
from recipes.swe.tasks_fetch import Fetcher
from sandbox.cache import layer_dir
from sandbox.mini import MiniBackend


def git(folder: Path, *arguments: str) -> str:
    """Runs git as a user with a name would."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder.parent),
        **{f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=env, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A bare repository as servers hold it, and its commits, oldest first."""
    folder = tmp_path_factory.mktemp("remote")
    work = folder / "work"
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    commits: list[str] = []
    for text in ("one", "two", "three"):
        (work / "file.txt").write_text(text)
        (work / "run.sh").write_text("#!/bin/sh\n")
        (work / "run.sh").chmod(0o755)
        if not (work / "link").is_symlink():
            (work / "link").symlink_to("file.txt")
        (work / ".gitattributes").write_text("*.txt filter=evil export-ignore\n")
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", text)
        commits.append(git(work, "rev-parse", "HEAD"))
    git(folder, "clone", "-q", "--bare", "work", "repo.git")
    hook = folder / "repo.git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch /tmp/hook-ran\n")
    hook.chmod(0o755)
    git(folder / "repo.git", "update-server-info")
    folder.chmod(0o755)
    return folder / "repo.git", commits


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """The folder over plain http at 127.0.0.2 (what 127.0.0.1 is inside, is inside); gives the port."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.2", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def fetch(cache: Path, source: RepoSource, *hosts: str) -> Path:
    """The repository as a layer."""

    async def work() -> str:
        settings = BuildSettings(cache, "file:///nonexistent", timeout_s=60.0, git_hosts=hosts)
        async with MiniBackend() as backend:
            return await repo_layer(
                source, settings, backend, Fetcher(settings.index_url, cache / "downloads")
            )

    return layer_dir(cache, asyncio.run(work())) / "root" / "testbed"


def test_a_commit_is_fetched_over_http_without_history(
    remote: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, commits = remote
    with served(folder.parent) as port:
        source = RepoSource("git", f"http://127.0.0.2:{port}/repo.git", commits[1])
        tree = fetch(tmp_path, source, f"127.0.0.2:{port}")
    assert (tree / "file.txt").read_text() == "two"
    assert (tree / "link").is_symlink() and os.access(tree / "run.sh", os.X_OK)
    assert sorted(path.name for path in tree.iterdir()) == [".gitattributes", "file.txt", "link", "run.sh"]
    assert not Path("/tmp/hook-ran").exists()
    again = fetch(tmp_path, RepoSource("git", "http://127.0.0.2:9/gone.git", commits[1]))  # known by its hash
    assert again == tree


def test_a_commit_of_a_folder_on_this_machine(remote: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, commits = remote
    one = fetch(tmp_path / "one", RepoSource("git", f"file://{folder}", commits[0]))
    assert (one / "file.txt").read_text() == "one"
    other = fetch(tmp_path / "other", RepoSource("git", str(folder), commits[0]))
    assert one.parents[1].name == other.parents[1].name  # wherever it comes from, it is the same layer


@pytest.mark.parametrize(
    ("location", "revision", "words"),
    [
        ("http://127.0.0.2:1/repo.git", "main", "no full commit id"),
        ("http://127.0.0.2:1/repo.git", "0" * 40, "not among the hosts"),
        ("ssh://somewhere/repo.git", "0" * 40, "no http, https or file address"),
        ("ext::sh -c touch% /tmp/owned", "0" * 40, "no http, https or file address"),
        ("--upload-pack=touch /tmp/owned", "0" * 40, "no http, https or file address"),
    ],
)
def test_what_is_no_commit_of_an_allowed_host_is_refused(
    location: str, revision: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=words):
        fetch(tmp_path, RepoSource("git", location, revision))


def test_a_missing_commit_may_come_later(remote: tuple[Path, list[str]], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="fetching") as caught:
        fetch(tmp_path, RepoSource("git", f"file://{remote[0]}", "1" * 40))
    assert not caught.value.lasting and not list((tmp_path / "layers").glob("*"))


def test_a_folder_is_copied_by_value(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "module.py").write_text("x = 1\n")
    os.mkfifo(folder / "pipe")
    tree = fetch(tmp_path / "cache", RepoSource("dir", str(folder)))
    assert [path.name for path in tree.iterdir()] == ["module.py"]
    (folder / "module.py").write_text("x = 2\n")
    assert fetch(tmp_path / "cache", RepoSource("dir", str(folder))) != tree
    assert (tree / "module.py").read_text() == "x = 1\n"
