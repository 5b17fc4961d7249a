"""The repository of an environment as a layer: its files at one state, and no history of any kind.

From a commit of a remote, a source distribution of the index, or a folder. A commit is fetched by git in a
sandbox that reaches that remote only, with no configuration, hook or credential of this machine, and is what
its hash says or nothing. Submodules and LFS contents are not fetched. Nothing of the repository is run.
"""

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from recipes.swe.build_types import (
    BUILD_VERSION,
    BuildError,
    BuildSettings,
    facts_digest,
    publish_from,
    run_build,
)
from recipes.swe.dataset_types import RepoSource
from recipes.swe.tasks_fetch import Fetcher
from recipes.swe.tasks_projects import Download
from sandbox.cache_publish import has_layer, layer_name, publish_layer
from sandbox.types import GIB, Backend, BindMount, SandboxSpec

SOURCE_LIMIT_BYTES = 4 * GIB
DEBRIS = ("**/*.egg-info", "**/__pycache__", "**/*.pyc", "**/.git", "PKG-INFO", "build", "dist")
"""Left in sdists by packaging, no part of the repository (glob patterns below its root)."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_GIT = (
    "git -c core.hooksPath=/dev/null -c protocol.ext.allow=never -c protocol.file.allow=always "
    "-c safe.directory='*' -c core.symlinks=true -c core.autocrlf=false -c fetch.fsckObjects=true "
    "-c fetch.fsck.zeroPaddedFilemode=ignore -c fetch.fsck.missingSpaceBeforeDate=ignore "
    "-c fetch.fsck.badTimezone=ignore -c http.lowSpeedLimit=1000 -c http.lowSpeedTime=60"
)
_ALL = "'+refs/heads/*:refs/all/heads/*' '+refs/tags/*:refs/all/tags/*'"
_FETCHED = "/tmp/fetched"


def repo_facts(source: RepoSource) -> dict[str, str]:
    """What a repository layer is made from; reads the folder of a `dir` source."""
    facts = {"kind": "repo", "build": BUILD_VERSION, "source": source.kind}
    if source.kind == "dir":
        return {**facts, "tree": _tree_digest(Path(source.location))}
    if source.kind == "sdist":
        return {**facts, "sha256": source.revision, "debris": " ".join(DEBRIS)}
    if not _COMMIT.fullmatch(source.revision):
        raise BuildError(f"{source.revision!r} is no full commit id; a branch or tag could move")
    return {**facts, "commit": source.revision}  # whoever serves it, it is the same


async def repo_layer(source: RepoSource, settings: BuildSettings, backend: Backend, fetcher: Fetcher) -> str:
    """Name of the layer with the repository at /testbed; built when missing.

    Raises BuildError, FetchError, SandboxError."""
    facts = await asyncio.to_thread(repo_facts, source)
    root = settings.cache_dir
    name = layer_name("repo", facts_digest(facts))
    if has_layer(root, name):
        return name
    if source.kind == "git":
        await _publish_git(name, facts, source, settings, backend)
        return name
    if source.kind == "sdist":
        sdist = await asyncio.to_thread(_fetch_sdist, source, fetcher)
        await asyncio.to_thread(_publish_sdist, root, name, facts, sdist)
        return name
    await asyncio.to_thread(_publish_folder, root, name, facts, Path(source.location))
    return name


def _fetch_sdist(source: RepoSource, fetcher: Fetcher) -> Path:
    project, _, version = source.location.partition("==")
    if not version or not re.fullmatch(r"[0-9a-f]{64}", source.revision):
        raise BuildError(f"an sdist is named NAME==VERSION and its sha256, not {source.location!r}")
    stem = re.compile(
        rf"{re.sub('[-_.]+', '[-_.]+', re.escape(project))}-{re.escape(version)}", re.IGNORECASE
    )
    kept = [f"{project}-{version}.tar.gz", f"{project.replace('-', '_')}-{version}.tar.gz"]
    for file in kept:
        if (path := fetcher.verified(file, source.revision)) is not None:
            return path
    for file in fetcher.files_of(project):
        if stem.fullmatch(file.removesuffix(".tar.gz")) and file.endswith(".tar.gz"):
            return fetcher.fetch(Download(project, file, source.revision))
    raise BuildError(f"the index has no sdist {source.location}")


def _publish_sdist(root: Path, name: str, facts: dict[str, str], sdist: Path) -> None:
    with publish_layer(root, name, facts) as content:
        if content is None:
            return
        with tempfile.TemporaryDirectory(dir=content.parent) as folder:
            try:
                with tarfile.open(sdist) as tar:
                    tar.extractall(folder, filter="data")
            except tarfile.TarError as error:
                raise BuildError(f"{sdist.name} cannot be unpacked: {error}") from error
            tops = list(Path(folder).iterdir())
            if len(tops) != 1 or not tops[0].is_dir():
                raise BuildError(f"{sdist.name} does not hold exactly one directory")
            tops[0].rename(content / "testbed")
        _remove(content / "testbed", DEBRIS)


def _publish_folder(root: Path, name: str, facts: dict[str, str], folder: Path) -> None:
    with publish_layer(root, name, facts) as content:
        if content is not None:
            shutil.copytree(folder, content / "testbed", symlinks=True, ignore=_special)
            _remove(content / "testbed", ("**/.git", "**/__pycache__"))


def _special(folder: str, names: list[str]) -> list[str]:
    """Sockets, FIFOs and devices, which no repository has."""
    modes = ((name, os.lstat(Path(folder) / name).st_mode) for name in names)
    return [
        name for name, mode in modes if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


async def _publish_git(
    name: str, facts: dict[str, str], source: RepoSource, settings: BuildSettings, backend: Backend
) -> None:
    url, hosts, binds = _remote(source, settings)
    script = "\n".join(
        (
            "set -eu",
            "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 HOME=/tmp",
            "mkdir -p /tmp/store; cd /tmp/store",
            f"{_GIT} init -q --template= .",
            # Servers may refuse single commits: then all branches and tags are fetched.
            f"{_GIT} fetch -q --no-tags --depth 1 {shlex.quote(url)} {source.revision} 2>/tmp/why || "
            f"{_GIT} fetch -q {shlex.quote(url)} {_ALL}",
            f"{_GIT} cat-file -e {source.revision}^{{commit}}",
            f"mkdir {_FETCHED}",
            f"{_GIT} --work-tree {_FETCHED} checkout -q -f {source.revision} -- .",
        )
    )
    spec = SandboxSpec(
        binds=binds, limits=settings.limits, allowed_hosts=hosts, upper="disk", env=certificates()
    )
    async with await backend.open(spec) as sandbox:
        what = f"fetching {source.location} at {source.revision[:12]}"
        try:
            await run_build(sandbox, script, what, timeout_s=settings.timeout_s)
        except BuildError as error:
            raise BuildError(str(error), timed_out=error.timed_out, lasting=False, log=error.log) from error
        await publish_from(
            sandbox, settings.cache_dir, name, facts, {_FETCHED: "/testbed"},
            limit_bytes=SOURCE_LIMIT_BYTES, tidy=lambda stage: _remove(stage / "testbed", ("**/.git",)),
        )  # fmt: skip


def _remote(
    source: RepoSource, settings: BuildSettings
) -> tuple[str, tuple[str, ...], tuple[BindMount, ...]]:
    """(address inside, hosts it needs, folders it needs)."""
    url = source.location
    parts = urlsplit(url)
    if parts.scheme == "file" or url.startswith("/"):
        return "/remote", (), (BindMount(Path(parts.path), "/remote"),)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BuildError(f"{url} is no http, https or file address of a repository")
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    names = {parts.hostname, f"{parts.hostname}:{port}"}
    if not names & set(settings.git_hosts):
        allowed = ", ".join(settings.git_hosts) or "none"
        raise BuildError(
            f"{parts.hostname} is not among the hosts to fetch from ({allowed}); see `git_hosts`"
        )
    return url, (f"{parts.hostname}:{port}",), ()


def certificates() -> dict[str, str]:
    """Variables by which programs inside find the certificates that the host trusts."""
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if not bundle.exists():
        return {}
    names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE")
    return dict.fromkeys(names, str(bundle))


def _remove(tree: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in list(tree.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _tree_digest(folder: Path) -> str:
    if not folder.is_dir():
        raise BuildError(f"{folder} is no folder")
    digest = hashlib.sha256()
    for path, data in _contents(folder):
        digest.update(os.fsencode(path) + b"\0" + hashlib.sha256(data).digest())
    return digest.hexdigest()


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - {".git", "__pycache__"})
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*files, *links]):
            path = Path(place) / name
            relative = str(path.relative_to(folder))
            if path.is_symlink():
                yield f"{relative} ->", os.fsencode(path.readlink())
            elif path.is_file():
                yield f"{relative} {path.stat().st_mode & 0o111:o}", path.read_bytes()
