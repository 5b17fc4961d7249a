"""The helper's staging area: everything sandboxes share, mounted once.

A tmpfs in the helper's private mount namespace holds the skeleton of the root (/etc, symlinks, mount
points), a minimal /dev, and one mount per cached layer and bind, idmapped as root. A sandbox's mount
namespace starts as a copy of the helper's, so it finds all of it at no cost. Nothing shows on the host.
"""

import os
import shutil

from sandbox import images, namespaces, syscalls

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_KEEP_STAGED = 96
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
_ETC_NETWORK_TREES = ("ssl/certs", "pki/tls/certs", "pki/ca-trust", "ca-certificates")
_ETC_WRITTEN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
}


class NotIdmappableError(OSError):
    """The file system of a layer refuses idmapped mounts."""


class Stage:
    """Owns the staging directory. `shifted` says whether ids are shifted and mounts idmapped."""

    def __init__(self, directory: str, *, shifted: bool, idmap_userns: int) -> None:
        self.directory = directory
        self._shifted = shifted
        self._userns = idmap_userns
        self._staged: dict[tuple[str, bool, bool, int, int], str] = {}
        self._counter = 0
        syscalls.mount("tmpfs", directory, "tmpfs", syscalls.MS_NOSUID, "mode=711,size=64m")
        # Shared, so that a layer attached later also appears in sandboxes that were made ahead; their own
        # mounts do not come back: the copy of a less privileged namespace is a slave, mount_namespaces(7).
        syscalls.mount("none", directory, None, syscalls.MS_SHARED)
        for name in ("root", "upper", "proc", "layers", "disk"):
            os.mkdir(os.path.join(directory, name), 0o755)
        self._attach(
            self._host_tree("/usr", idmap=True, optional_idmap=True), self._make("usr"), writable=False
        )
        for network in (False, True):
            self._make_skeleton(self.skeleton(network=network), network=network)
        self._make_dev()

    def skeleton(self, *, network: bool) -> str:
        """Name of the lowest layer, relative to the staging directory."""
        return "base-net" if network else "base"

    def resolve(
        self, layers: list[str], binds: list[tuple[str, str, bool]]
    ) -> tuple[list[str], list[tuple[str, str]]]:
        """Names of the layers, and (name, target) of the binds with the host's programs first."""
        names = [self._layer(path) for path in layers]
        targets = [("usr", "/usr")]
        targets += [(self.layer(path), path) for path in self.host_directories()]
        targets += [(self.layer(source, writable=writable), target) for source, target, writable in binds]
        return names, targets

    def _layer(self, path: str) -> str:
        """Stage a layer: a directory, or an image that is mounted."""
        return self.layer(path, image=not os.path.isdir(path))

    def layer(self, path: str, *, writable: bool = False, image: bool = False) -> str:
        """Stage a host directory (or file) once; its name relative to the staging directory."""
        status = os.stat(path)
        key = (path, writable, image, status.st_dev, status.st_ino)
        name = self._staged.pop(key, None)
        if name is None:
            self._evict()
            self._counter += 1
            name = f"layers/{self._counter}"
            target = os.path.join(self.directory, name)
            # Before the place for it: an image that does not mount leaves nothing behind.
            tree = self._image(path) if image else self._host_tree(path, idmap=True, optional_idmap=False)
            if image or os.path.isdir(path):
                os.mkdir(target)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
            self._attach(tree, target, writable=writable)
        self._staged[key] = name  # re-inserted last: the dict is in order of use
        return name

    def attach_disk(self, path: str, name: str) -> str:
        """Stage a writable host directory for one sandbox; its name. `detach_disk` undoes it."""
        target = os.path.join(self.directory, "disk", name)
        os.mkdir(target)
        self._attach(syscalls.open_tree(path), target, writable=True)
        return f"disk/{name}"

    def detach_disk(self, name: str) -> None:
        """Take it away; the sandbox keeps its own copy of the mount."""
        target = os.path.join(self.directory, "disk", name)
        syscalls.umount_detach(target)
        os.rmdir(target)

    def _evict(self) -> None:
        while len(self._staged) >= _KEEP_STAGED:
            key = next(iter(self._staged))
            target = os.path.join(self.directory, self._staged.pop(key))
            # Open sandboxes keep their own copies of the mount.
            syscalls.umount_detach(target)
            os.rmdir(target) if os.path.isdir(target) else os.unlink(target)

    def _image(self, path: str) -> int:
        """Mount an image. One whose files belong to the shifted root already is taken as it is, which serves
        kernels that have no idmapped mounts of it (squashfs before 6.2)."""
        tree = images.attach(path)
        if not self._shifted or os.stat(".", dir_fd=tree).st_uid == namespaces.SHIFT_BASE:
            return tree
        return self._idmap(tree, path)

    def _idmap(self, tree: int, path: str) -> int:
        try:
            # An idmapping can be set only while the tree is detached, mount_setattr(2).
            syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, self._userns)
        except OSError as error:
            os.close(tree)
            raise NotIdmappableError(error.errno, f"idmapped mount of {path}: {error}") from error
        return tree

    def _host_tree(self, path: str, *, idmap: bool, optional_idmap: bool) -> int:
        tree = syscalls.open_tree(path)
        if not (idmap and self._shifted):
            return tree
        try:
            return self._idmap(tree, path)
        except NotIdmappableError:
            if optional_idmap:
                return syscalls.open_tree(path)
            raise

    def _attach(self, tree: int, target: str, *, writable: bool) -> None:
        attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
        if not writable:
            attributes |= syscalls.MOUNT_ATTR_RDONLY
        try:
            syscalls.mount_setattr(tree, attributes)
            syscalls.move_mount(tree, target)
        finally:
            os.close(tree)

    def _make(self, name: str) -> str:
        path = os.path.join(self.directory, name)
        os.mkdir(path, 0o755)
        return path

    def _make_skeleton(self, name: str, *, network: bool) -> None:
        base = self._make(name)
        for directory, mode in (
            ("usr", 0o755), ("etc", 0o755), ("dev", 0o755), ("proc", 0o555), ("tmp", 0o1777),
            ("root", 0o700),
            ("run", 0o755), ("var", 0o755), ("var/tmp", 0o1777), ("home", 0o755), ("opt", 0o755),
            ("mnt", 0o755),
        ):  # fmt: skip
            path = os.path.join(base, directory)
            os.mkdir(path)
            os.chmod(path, mode)
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if os.path.islink("/" + name):
                os.symlink(os.readlink("/" + name), os.path.join(base, name))
            elif os.path.isdir("/" + name):
                os.mkdir(os.path.join(base, name))
        self._fill_etc(os.path.join(base, "etc"), network=network)
        if self._shifted:
            _chown_tree(base, namespaces.SHIFT_BASE)

    @staticmethod
    def _fill_etc(etc: str, *, network: bool) -> None:
        for name, text in _ETC_WRITTEN.items():
            with open(os.path.join(etc, name), "w", encoding="utf-8") as file:
                file.write(text)
        for name in _ETC_COPIED + (_ETC_NETWORK if network else ()):
            source = os.path.join("/etc", name)
            if os.path.isfile(source) and os.access(source, os.R_OK):
                shutil.copyfile(source, os.path.join(etc, name))
        for name in _ETC_TREES + (_ETC_NETWORK_TREES if network else ()):
            source = os.path.join("/etc", name)
            if os.path.isdir(source):
                shutil.copytree(source, os.path.join(etc, name), symlinks=True, ignore_dangling_symlinks=True)

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

    def host_directories(self) -> list[str]:
        """Real directories among /bin, /lib, ... on hosts without a merged /usr; bound as they are."""
        return [
            "/" + name
            for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
            if os.path.isdir("/" + name) and not os.path.islink("/" + name)
        ]


def _chown_tree(path: str, uid: int) -> None:
    os.lchown(path, uid, uid)
    for directory, names, files in os.walk(path):
        for name in names + files:
            os.lchown(os.path.join(directory, name), uid, uid)
