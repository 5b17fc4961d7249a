"""The helper's staging area: what the roots of all sandboxes are made of.

A tmpfs in the helper's private mount namespace holds a minimal /dev, the mounts of layer images (once per
helper, however many sandboxes use them) and empty places, `slots`. The skeleton of the root (/etc, symlinks,
mount points) lies beside it. For each sandbox the trees it needs are cloned, idmapped to its own ids and
attached to the slots in its own mount namespace, which `sandbox.nursery` does; nothing shows on the host.
"""

import os
import stat
from collections.abc import Iterable

from sandbox import images, syscalls

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_COPIED = (
    "ld.so.cache",
    "localtime",
    "os-release",
    "debian_version",
    "mime.types",
    "services",
    "protocols",
)
_ETC_TREES = ("alternatives", "ld.so.conf.d", "fonts")
_ETC_NETWORK = ("resolv.conf", "pip.conf")
_ETC_CERTIFICATES = ("ssl/certs", "pki/tls/certs", "pki/ca-trust")
_ETC_NETWORK_TREES = (*_ETC_CERTIFICATES, "ca-certificates")
_ETC_WRITTEN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
}


_NOSUID_NODEV = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV

Tree = tuple[int, str]
"""A detached mount, and the slot it goes to."""


class Stage:
    """Owns the staging directory. `idmap_userns`: a user namespace with shifted ids, to try with, or -1."""

    def __init__(self, directory: str, *, skeletons: str, idmap_userns: int) -> None:
        self.directory = directory
        self._skeletons = skeletons
        self._userns = idmap_userns
        self._images: dict[tuple[str, int, int], str] = {}
        self._idmappable: dict[int, bool] = {}
        self._slots: set[str] = set()
        self._host_directories = host_directories()
        syscalls.mount("tmpfs", directory, "tmpfs", syscalls.MS_NOSUID, "mode=711,size=64m")
        for name in ("root", "upper", "proc", "base", "usr", "images"):
            self._make(name)
        self._make_dev()
        make_skeleton(self.skeleton(network=False), network=False)

    def can_shift(self, layers: Iterable[str], binds: Iterable[str]) -> bool:
        """Whether all these can be idmapped; decided once per file system."""
        sources = [*map(self._source, layers), *binds]
        return all(map(self._can_shift, sources))

    def _can_shift(self, path: str) -> bool:
        device = os.stat(path).st_dev
        if device not in self._idmappable:
            tree = syscalls.open_tree(path)
            try:
                syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, self._userns)
                self._idmappable[device] = True
            except OSError:
                self._idmappable[device] = False
            finally:
                os.close(tree)
        return self._idmappable[device]

    def fixed(self, userns: int, *, network: bool) -> list[Tree]:
        """What every root has: the host's programs and the skeleton. `userns`: of the sandbox, or -1."""
        trees = [(self._tree("/usr", userns if self._can_shift("/usr") else -1), "usr")]
        for index, path in enumerate(self._host_directories):
            shift = userns if self._can_shift(path) else -1
            trees.append((self._tree(path, shift), self._slot(f"host{index}", path)))
        skeleton = self.skeleton(network=network)
        if not os.path.isdir(skeleton):
            make_skeleton(skeleton, network=network)
        trees.append((self._tree(skeleton, userns), "base"))
        return trees

    def skeleton(self, *, network: bool) -> str:
        """Directory of what lies below all layers."""
        return os.path.join(self._skeletons, "network" if network else "plain")

    def requested(
        self, layers: list[str], binds: list[tuple[str, str, bool]], userns: int, *, proxied: bool
    ) -> tuple[list[str], list[tuple[str, str]], list[Tree]]:
        """Slots of the layers, (slot, target) of the binds with the host's programs first, and the trees.

        `proxied`: programs get out, and so need the host's certificates of authorities. Raises OSError for a
        path that is not there; closes what it opened."""
        trees: list[Tree] = []
        targets = [("usr", "/usr")]
        targets += [(f"host{index}", path) for index, path in enumerate(self._host_directories)]
        try:
            for index, path in enumerate(layers):
                trees.append((self._tree(self._source(path), userns), self._slot(f"l{index}", "/")))
            slots = [name for _, name in trees]
            for index, path in enumerate(_certificates() if proxied else []):
                shift = userns if self._can_shift(path) else -1
                trees.append((self._tree(path, shift), self._slot(f"certificates{index}", path)))
                targets.append((trees[-1][1], path))
            for index, (path, target, writable) in enumerate(binds):
                tree = self._tree(path, userns, writable=writable)
                trees.append((tree, self._slot(f"b{index}", path)))
                targets.append((trees[-1][1], target))
        except OSError:
            for tree, _ in trees:
                os.close(tree)
            raise
        return slots, targets, trees

    def disk(self, path: str) -> Tree:
        """A writable directory that belongs to the sandbox's root already, in place of its tmpfs."""
        return self._tree(path, -1, writable=True), self._slot("disk", "/")

    def _tree(self, path: str, userns: int, *, writable: bool = False) -> int:
        """A detached clone of what is at `path` and below, with its attributes set."""
        tree = syscalls.open_tree(path)
        attributes = _NOSUID_NODEV | (0 if writable else syscalls.MOUNT_ATTR_RDONLY)
        try:
            # An idmapping can be set only while the tree is detached, mount_setattr(2).
            if userns >= 0:
                syscalls.mount_setattr(tree, attributes | syscalls.MOUNT_ATTR_IDMAP, userns)
            else:
                syscalls.mount_setattr(tree, attributes)
        except OSError as error:
            os.close(tree)
            raise OSError(error.errno, f"mount of {path}: {error.strerror}") from error
        return tree

    def _source(self, path: str) -> str:
        """Where a layer's files are: a directory itself, or the place where its image is mounted once."""
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return path
        key = (path, status.st_dev, status.st_ino)
        if key not in self._images:
            tree = images.attach(path)
            place = os.path.join(self.directory, "images", str(len(self._images)))
            try:
                os.mkdir(place)
                syscalls.move_mount(tree, place)
            finally:
                os.close(tree)
            self._images[key] = place
        return self._images[key]

    def _slot(self, name: str, like: str) -> str:
        """An empty place for a directory, or for a file where `like` is one."""
        slot = name if os.path.isdir(like) else name + ".file"
        if slot not in self._slots:
            place = os.path.join(self.directory, slot)
            if slot == name:
                os.mkdir(place)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
            self._slots.add(slot)
        return slot

    def _make(self, name: str) -> str:
        path = os.path.join(self.directory, name)
        os.mkdir(path, 0o755)
        return path

    def _make_dev(self) -> None:
        dev = self._make("dev")
        syscalls.mount("tmpfs", dev, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "mode=755,size=64k")
        for name in _DEVICES:
            target = os.path.join(dev, name)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
            tree = syscalls.open_tree("/dev/" + name)
            try:
                # Read-only does not stop writing to a device, but changing its mode and times, which a root
                # whose ids are not shifted owns outside too.
                syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_RDONLY)
                syscalls.move_mount(tree, target)
            finally:
                os.close(tree)
        for name, target in (
            ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx"),
        ):  # fmt: skip
            os.symlink(target, os.path.join(dev, name))
        for name in ("pts", "shm"):
            os.mkdir(os.path.join(dev, name))
        flags = (
            syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NOEXEC | syscalls.MS_REMOUNT
        )  # shared by all
        syscalls.mount("tmpfs", dev, None, flags, "mode=755,size=64k")


def _certificates() -> list[str]:
    """Where this machine keeps certificates of authorities."""
    return [path for name in _ETC_CERTIFICATES if os.path.isdir(path := os.path.join("/etc", name))]


def make_skeleton(base: str, *, network: bool) -> None:
    """What lies below all layers, in a new directory, with places for what is bound."""
    os.makedirs(base)
    for directory, mode in (
        ("usr", 0o755), ("etc", 0o755), ("dev", 0o755), ("proc", 0o555), ("tmp", 0o1777),
        ("root", 0o700),
        ("run", 0o755), ("var", 0o755), ("var/tmp", 0o1777), ("home", 0o755), ("opt", 0o755),
        ("mnt", 0o755),
    ):  # fmt: skip
        path = os.path.join(base, directory)
        os.mkdir(path)
        os.chmod(path, mode)
    for name in _ROOT_NAMES:
        if os.path.islink("/" + name):
            os.symlink(os.readlink("/" + name), os.path.join(base, name))
        elif os.path.isdir("/" + name):
            os.mkdir(os.path.join(base, name))
    _fill_etc(os.path.join(base, "etc"), network=network)


def _fill_etc(etc: str, *, network: bool) -> None:
    for name, text in _ETC_WRITTEN.items():
        with open(os.path.join(etc, name), "w", encoding="utf-8") as file:
            file.write(text)
    for name in _ETC_COPIED + (_ETC_NETWORK if network else ()):
        source = os.path.join("/etc", name)
        if os.path.isfile(source) and os.access(source, os.R_OK):
            _copy_file(source, os.path.join(etc, name))
    for name in _ETC_TREES + (_ETC_NETWORK_TREES if network else ()):
        source = os.path.join("/etc", name)
        if os.path.isdir(source):
            _copy_tree(source, os.path.join(etc, name))


def host_directories() -> list[str]:
    """Real directories among /bin, /lib, ... on hosts without a merged /usr; bound as they are."""
    return [
        "/" + name for name in _ROOT_NAMES if os.path.isdir("/" + name) and not os.path.islink("/" + name)
    ]


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        writer.write(reader.read())


def _copy_tree(source: str, target: str) -> None:
    """Directories, files that can be read, and links as they are. `shutil` would cost every sandbox memory:
    what the helper has imported lies between what its children write to."""
    os.makedirs(target)
    with os.scandir(source) as entries:
        for entry in entries:
            place = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), place)
            elif entry.is_dir():
                _copy_tree(entry.path, place)
            elif entry.is_file() and os.access(entry.path, os.R_OK):
                _copy_file(entry.path, place)
