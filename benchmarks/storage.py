"""What 20 tasks over 3 environments take: our store, podman images, and one tar.gz per venv and repository.

`python -m benchmarks.storage --cache-dir DIR [--base DIR] [--output FILE.json]`, as root. All three are built
for real from the same layers, and each is measured as what its files take on disk. The images stand on a
Debian made by debootstrap (slim: minbase with git; `--packages` for more), or on any root given as `--base`,
and share what they can: one image a base, one an environment, one a task. Nothing is asked of a registry.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.containers import find
from sandbox.cache import EnvRecord, layer_dir, read_record
from sandbox.cache_layer import allocated_bytes
from sandbox.store import Store
from sandbox.store_push import push_envs

TASKS, ENVIRONMENTS = 20, 3
SLIM = "git,ca-certificates"
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
AGAINST_IMAGES, AGAINST_ARCHIVES = 0.05, 0.70


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on disk."""

    tasks: int
    environments: int
    base: int
    """The Debian that images stand on, unpacked."""
    images: int
    """podman's storage: base, environments and tasks share what they can."""
    images_apart: int
    """The same images without sharing, as podman tells the size of each."""
    archives: int
    """tar.gz: the interpreter once, a venv per environment, a repository per task."""
    archives_venv_repo: int
    """The same without the interpreter."""
    ours: int
    """Our store, manifests and records included."""
    ours_venv_repo: int
    """The same without the interpreter's layer."""
    ours_unpacked: int
    """All layers on a node, unpacked."""
    largest_task: int
    """The largest file of a task in our store."""

    def lines(self) -> list[str]:
        """For a person."""
        share, saved = self.ours / self.images, self.ours / self.archives
        rows = (
            (
                "podman images",
                self.images,
                f"base alone {_mb(self.base)}, not shared {_mb(self.images_apart)}",
            ),
            ("tar.gz", self.archives, f"without interpreter {_mb(self.archives_venv_repo)}"),
            ("our store", self.ours, f"without interpreter {_mb(self.ours_venv_repo)}"),
            ("our layers, unpacked", self.ours_unpacked, f"largest task packed {_mb(self.largest_task)}"),
        )
        bare = self.ours_venv_repo / self.archives_venv_repo
        return [
            f"{self.tasks} tasks over {self.environments} environments, MB on disk:",
            *(f"  {name:22}{_mb(size):>10}   ({note})" for name, size, note in rows),
            f"  of podman images: {share:.1%}, {_met(share, AGAINST_IMAGES)}",
            f"  of tar.gz: {saved:.1%}, {_met(saved, AGAINST_ARCHIVES)} (without interpreter {bare:.1%})",
        ]


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f}" if size < 1e7 else f"{size / 1e6:.1f}"


def _met(share: float, target: float) -> str:
    return f"target {target:.0%}: {'met' if share <= target else 'NOT met'}"


def choose(root: Path) -> dict[str, EnvRecord]:
    """Up to 20 tasks of the 3 environments that have the most, by key."""
    stacks: dict[tuple[str, ...], dict[str, EnvRecord]] = {}
    for path in sorted((root / "envs").glob("[!.]*.json")):
        record = read_record(path)
        if len(record.layers) == 4 and not record.python_prefix:
            stacks.setdefault(record.layers[1:], {})[path.stem] = record
    largest = sorted(stacks.values(), key=len, reverse=True)[:ENVIRONMENTS]
    chosen = {key: record for stack in largest for key, record in stack.items()}
    return dict(sorted(chosen.items())[:TASKS])


def _content(root: Path, layer: str) -> Path:
    return layer_dir(root, layer) / "root"


# -- ours


def our_store(root: Path, chosen: dict[str, EnvRecord], place: Path) -> tuple[int, int, int]:
    """(store, the interpreter's part of it, the largest task's file), bytes."""
    push_envs(root, list(chosen), Store(str(place)), say=lambda _line: None, mark=False)
    pythons = {record.layers[-1] for record in chosen.values()}
    files = list((place / "layers").iterdir())
    interpreter = sum(_on_disk(file) for file in files if file.name.split(".")[0] in pythons)
    largest = max(file.stat().st_size for file in files if file.name.startswith("task-"))
    return allocated_bytes(place), interpreter, largest


def _on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


# -- archives


def archives(root: Path, chosen: dict[str, EnvRecord], place: Path) -> tuple[int, int]:
    """(all, the interpreter's part) of one tar.gz per interpreter, venv and task, bytes."""
    place.mkdir()
    pythons: set[str] = set()
    environments: set[tuple[str, ...]] = set()
    for key, record in chosen.items():
        task, *_ = record.layers
        layers = {layer.partition("-")[0]: layer for layer in record.layers}
        if record.layers[1:] not in environments:
            environments.add(record.layers[1:])
            venv = place / f"venv-{len(environments)}.tar.gz"
            _tar_gz(venv, [(_content(root, layers["venv"]) / "opt/venv", "venv")])
        python = place / f"{layers['python']}.tar.gz"
        if not python.exists():
            _tar_gz(python, [(_content(root, layers["python"]) / "opt/python", "python")])
            pythons.add(python.name)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            repo = Path(folder) / "testbed"
            for layer in (layers["repo"], layers["venv"], task):
                if (_content(root, layer) / "testbed").is_dir():
                    shutil.copytree(
                        _content(root, layer) / "testbed", repo, symlinks=True, dirs_exist_ok=True
                    )
            _tar_gz(place / f"repo-{key}.tar.gz", [(repo, "testbed")])
    total = sum(_on_disk(file) for file in place.iterdir())
    return total, sum(_on_disk(place / name) for name in pythons)


def _tar_gz(target: Path, parts: Sequence[tuple[Path, str]]) -> None:
    with tarfile.open(target, "w:gz") as tar:
        for path, name in parts:
            tar.add(path, name)


# -- images


class Images:
    """podman with a storage of its own below `place`."""

    def __init__(self, place: Path) -> None:
        self.home = place
        self._base = [
            find("podman"), "--root", str(place / "root"), "--runroot", str(place / "run"),
            "--tmpdir", str(place / "tmp"), "--cgroup-manager", "cgroupfs", "--runtime", find("crun"),
        ]  # fmt: skip

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([*self._base, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"podman {arguments[0]}: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def add(self, tag: str, below: str, tree: Path, context: Path) -> None:
        """An image `tag` of `below` with a tree on top."""
        subprocess.run(["tar", "-C", tree, "-cf", context / "layer.tar", "."], check=True)
        (context / "Containerfile").write_text(f"FROM {below}\nADD layer.tar /\n")
        self("build", "--isolation", "chroot", "--pull=never", "-q", "-t", tag, str(context))

    def size(self) -> int:
        return allocated_bytes(self.home / "root")

    def sizes_apart(self, tags: Sequence[str]) -> int:
        return sum(int(self("image", "inspect", tag, "--format", "{{.Size}}")) for tag in tags)


def images(root: Path, chosen: dict[str, EnvRecord], base: Path, place: Path) -> tuple[int, int]:
    """(podman's storage, the images apart), bytes."""
    place.mkdir()
    podman, context = Images(place / "p"), place / "context"
    context.mkdir()
    try:
        subprocess.run(["tar", "-C", base, "-cf", place / "base.tar", "."], check=True)
        podman("import", "-q", str(place / "base.tar"), "base")
        made = {"base"}
        tags: list[str] = []
        for number, record in enumerate(chosen.values()):
            below = "base"
            for layer in reversed(
                record.layers[1:]
            ):  # as a Containerfile would: what changes least comes first
                tag = f"{below}-{layer}" if below != "base" else layer
                if tag not in made:
                    podman.add(tag, below, _content(root, layer), context)
                    made.add(tag)
                below = tag
            tags.append(f"task{number}")
            podman.add(tags[-1], below, _content(root, record.layers[0]), context)
        return podman.size(), podman.sizes_apart(tags)
    finally:
        subprocess.run([*podman._base, "rmi", "--all", "--force"], capture_output=True, check=False)


def debian(place: Path, packages: str) -> Path:
    """A Debian to stand on, made by debootstrap without what apt needs only to install more."""
    program = shutil.which("debootstrap")
    if program is None:
        raise SystemExit("debootstrap is not installed: apt install debootstrap, or give a root as --base")
    command = [program, "--variant=minbase", f"--include={packages}", SUITE, str(place), MIRROR]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for name in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(place / name, ignore_errors=True)
    return place


def measure(root: Path, base: Path | None, packages: str, work: Path) -> Sizes:
    """Build all three and measure them."""
    chosen = choose(root)
    if not chosen:
        raise SystemExit(
            f"no environments with the interpreter as a layer in {root}; python launch/prepare.py"
        )
    base = base or debian(work / "debian", packages)
    ours, our_python, largest = our_store(root, chosen, work / "store")
    packed, packed_python = archives(root, chosen, work / "archives")
    shared, apart = images(root, chosen, base, work / "i")  # podman allows a runroot 50 characters
    layers = {layer for record in chosen.values() for layer in record.layers}
    return Sizes(
        tasks=len(chosen),
        environments=len({record.layers[1:] for record in chosen.values()}),
        base=allocated_bytes(base),
        images=shared,
        images_apart=apart,
        archives=packed,
        archives_venv_repo=packed - packed_python,
        ours=ours,
        ours_venv_repo=ours - our_python,
        ours_unpacked=sum(allocated_bytes(layer_dir(root, layer)) for layer in layers),
        largest_task=largest,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 when both targets are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache"))
    parser.add_argument("--base", type=Path, help="root that images stand on (default: made by debootstrap)")
    parser.add_argument("--packages", default=SLIM, help="of the Debian made (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="JSON file of the sizes")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0 or not find("podman"):
        raise SystemExit("this builds podman images: be root and apt install podman crun")
    with tempfile.TemporaryDirectory(prefix="bs-", dir=options.work) as work:
        sizes = measure(options.cache_dir.absolute(), options.base, options.packages, Path(work))
    print("\n".join(sizes.lines()))
    if options.output:
        options.output.write_text(json.dumps(asdict(sizes), indent=1) + "\n")
    right = sizes.ours <= AGAINST_IMAGES * sizes.images and sizes.ours <= AGAINST_ARCHIVES * sizes.archives
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
