"""The root file system of one sandbox, built by its own first process.

Runs inside the new namespaces with the privileges of the new user namespace, before they are dropped, in
two halves: `prepare` makes what no request decides, so that a pool can hold it ready; `finish` makes the
overlay and enters it. Order follows pivot_root(2), overlayfs and user_namespaces(7); reasons stand where it
matters. What lies in the staging area is made by `sandbox.stage`.
"""

import os
import stat
from typing import NamedTuple

from sandbox import overlay, snapshot, syscalls

_GUARDED = ("/sys", "/sysrq-trigger", "/irq", "/bus", "/fs")
_HIDDEN = ("/kcore", "/keys", "/timer_list", "/kallsyms")
# Only for a root that keeps id 0 outside: what file modes keep from all others.
_GUARDED_FROM_ROOT = (
    "/acpi", "/scsi", "/driver", "/asound", "/tty", "/dynamic_debug", "/pressure", "/mtrr",
    "/1/oom_score_adj", "/1/oom_adj", "/1/timerslack_ns", "/1/coredump_filter",
)  # fmt: skip
_HIDDEN_FROM_ROOT = (
    "/slabinfo", "/vmallocinfo", "/kpagecount", "/kpageflags", "/kpagecgroup", "/pagetypeinfo", "/iomem",
    "/ioports", "/1/mountstats", "/1/mountinfo", "/1/mounts", "/1/stack", "/1/syscall",
)  # fmt: skip
_TCP_BUFFERS = "4096 65536 1048576"


class RootPlan(NamedTuple):
    """What one sandbox's root is made of; names are relative to the staging area."""

    layers: list[str]
    """Topmost first."""
    binds: list[tuple[str, str]]
    """(name, path inside), in order."""
    disk_bytes: int
    """Size of the tmpfs upper; a disk upper is watched by the owner instead."""
    disk_upper: str | None
    """Slot of a host directory for the writable layer in place of the tmpfs, or None."""
    copy_of: int
    """Descriptor of the writable area of another sandbox to start from, or -1."""
    mode: str
    """See `sandbox.overlay.Mode`."""
    workdir: str
    """Must be writable in every mode."""


class Root(NamedTuple):
    """What the owner needs to know of a root that was made."""

    upper: int
    """Descriptor of the writable layer."""
    complete: bool
    """Whether that holds all files, and not only what was changed."""
    covered: list[str]
    """Absolute paths on which other trees are mounted."""


def prepare(*, host_root: bool, own_network: bool) -> None:
    """What every root needs: the private /proc, /dev/pts, /dev/shm and the tmpfs to write to.

    `host_root`: the sandbox's root keeps id 0 outside. `own_network`: it has a network to set limits in.

    The working directory is the staging area, here and until `finish` returns."""
    # A new proc is allowed only while a fully visible one is mounted here, so before the old root goes.
    syscalls.mount("proc", "proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    # Of the 128 that a user has on the machine, inotify(7): outside the shifted mode that is the host's user.
    if os.path.exists("proc/sys/user/max_inotify_instances"):
        syscalls.write_setting("proc/sys/user/max_inotify_instances", "32")
    if own_network:
        # Buffers of sockets are kernel memory that older cgroups do not count, tcp(7).
        for name in ("tcp_rmem", "tcp_wmem"):
            syscalls.write_setting(f"proc/sys/net/ipv4/{name}", _TCP_BUFFERS)
    _guard_proc("proc", host_root=host_root)
    devpts = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", "dev/pts", "devpts", devpts, "newinstance,ptmxmode=0666,mode=620,max=256")
    syscalls.mount("tmpfs", "upper", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")
    _make_directories("upper", (("upper", 0o755), ("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777)))
    _attach(syscalls.open_tree("upper/shm"), "dev/shm")


def finish(plan: RootPlan) -> Root:
    """Make the root, enter it, leave the host. Raises OSError for what cannot be mounted."""
    inodes = max(16_384, plan.disk_bytes // 4096)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_REMOUNT
    syscalls.mount("none", "upper", None, flags, f"size={plan.disk_bytes},nr_inodes={inodes}")
    if plan.disk_upper is not None:
        _use_disk(plan.disk_upper)
    if plan.copy_of >= 0:
        snapshot.copy_writable(plan.copy_of, "upper")
    upper = os.open("upper/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    trees = _make_root(plan, upper)
    # Clone what will be attached while the stage can still be named; attach after the pivot, so that a
    # symbolic link in a layer resolves inside the new root and not on the host.
    trees += [(syscalls.open_tree("proc"), "/proc"), (syscalls.open_tree("dev"), "/dev")]
    trees += [(syscalls.open_tree(source), target) for source, target in plan.binds]
    trees.append((syscalls.open_tree("upper/tmp"), "/tmp"))
    os.chdir("root")
    # "." twice stacks the old root on the new one, pivot_root(2); it is unmounted below.
    syscalls.pivot_root(".", ".")
    # Before anything is attached: while the old root lies on the new one, ".." of the root is on the host.
    syscalls.umount_detach(".")
    os.chdir("/")
    for tree, target in trees:
        _attach(tree, target)
    return Root(upper, plan.mode != "overlay", [target for _, target in trees])


def _make_root(plan: RootPlan, upper: int) -> list[tuple[int, str]]:
    """Mount `root`; returns the trees that belong on it first."""
    # Short relative names: mount options are limited to one page.
    layers = [*plan.layers, "base"]
    if plan.mode == "overlay":
        try:
            overlay.mount(":".join(layers))
        except OSError as error:
            # overlay stacks two deep, and takes no network file systems as its upper.
            text = f"{error.strerror}; the mode `copies` does without an overlay"
            raise OSError(error.errno, text) from error
        return []
    # `sandbox.overlay` loaded it before the fork, in the modes that need it: memory of every sandbox else.
    from sandbox import assemble

    covered = ["/proc", "/dev", "/tmp", *(target for _, target in plan.binds)]
    bind, filled = plan.mode == "copies", plan.copy_of >= 0
    trees = assemble.fill(upper, assemble.Plan(layers, [plan.workdir], covered, bind=bind, filled=filled))
    _attach(syscalls.open_tree("upper/upper"), "root")
    return trees


def _make_directories(parent: str, names: tuple[tuple[str, int], ...]) -> None:
    for name, mode in names:
        path = os.path.join(parent, name)
        os.mkdir(path)
        os.chmod(path, mode)


def _use_disk(slot: str) -> None:
    """Put the directory in a slot over the tmpfs; the helper made it and gave it to our root."""
    _attach(syscalls.open_tree(slot), "upper")
    _make_directories("upper", (("upper", 0o755), ("work", 0o755), ("tmp", 0o1777)))


def _attach(tree: int, target: str) -> None:
    try:
        if not os.path.exists(target):
            _make_target(tree, target)
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)


def _make_target(tree: int, target: str) -> None:
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))


def _guard_proc(proc: str, *, host_root: bool) -> None:
    """Kernel settings read-only, memory hidden. File modes protect most of them from a root with another id
    outside; they give way to one that keeps id 0, from whom more is hidden."""
    for path in _GUARDED + (_GUARDED_FROM_ROOT if host_root else ()):
        _remount_over(proc + path, proc + path)
    for path in _HIDDEN + (_HIDDEN_FROM_ROOT if host_root else ()):
        _remount_over("dev/null", proc + path)


def _remount_over(source: str, target: str) -> None:
    try:
        tree = syscalls.open_tree(source)
    except FileNotFoundError:
        return
    try:
        syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_RDONLY)
        syscalls.move_mount(tree, target)
    except FileNotFoundError:
        return  # this kernel has no such file
    finally:
        os.close(tree)
