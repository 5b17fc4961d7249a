"""The root file system of one sandbox, built by its own first process.

Runs inside the new namespaces with the privileges of the new user namespace, before they are dropped.
Order follows pivot_root(2), overlayfs and user_namespaces(7); reasons stand where it matters.
"""

import os

from sandbox import syscalls


def _tmpfs_upper(directory: str, disk_bytes: int) -> None:
    inodes = max(16_384, disk_bytes // 4096)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", directory, "tmpfs", flags, f"mode=755,size={disk_bytes},nr_inodes={inodes}")
    for name, mode in (("upper", 0o755), ("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777)):
        path = os.path.join(directory, name)
        os.mkdir(path)
        os.chmod(path, mode)


def build_root(
    stage: str, *, layers: list[str], skeleton: str, binds: list[tuple[str, str]], disk_bytes: int
) -> int:
    """Make the overlay, enter it, leave the host. Returns a descriptor of the upper layer.

    `layers` and the sources in `binds` are names below `stage`, topmost layer first."""
    os.chdir(stage)
    _tmpfs_upper("upper", disk_bytes)
    upper = os.open("upper/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # Short relative names: mount options are limited to one page.
    lower = ":".join([*layers, skeleton])
    # userxattr: unprivileged in the first user namespace, only user.* attributes can mark opaque directories.
    options = f"userxattr,lowerdir={lower},upperdir=upper/upper,workdir=upper/work"
    syscalls.mount("overlay", "root", "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    # Clone what will be attached while the stage can still be named; attach after the pivot, so that a
    # symbolic link in a layer resolves inside the new root and not on the host.
    trees = [(syscalls.open_tree(source), target) for source, target in binds]
    trees.append((syscalls.open_tree("upper/tmp"), "/tmp"))
    dev = syscalls.open_tree("dev")
    shm = syscalls.open_tree("upper/shm")
    os.chdir("root")
    # "." twice stacks the old root on the new one, pivot_root(2); it is unmounted below.
    syscalls.pivot_root(".", ".")
    # A new proc is allowed only while a fully visible one is mounted here, so before the old root goes.
    proc_flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "/proc", "proc", proc_flags)
    _attach(dev, "/dev")
    _attach(shm, "/dev/shm")
    syscalls.mount(
        "devpts",
        "/dev/pts",
        "devpts",
        syscalls.MS_NOSUID | syscalls.MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=620",
    )
    for tree, target in trees:
        _attach(tree, target)
    _guard_proc()
    syscalls.umount_detach(".")
    os.chdir("/")
    return upper


def _attach(tree: int, target: str) -> None:
    try:
        if not os.path.exists(target):
            _make_target(tree, target)
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)


def _make_target(tree: int, target: str) -> None:
    if os.path.isdir(f"/proc/self/fd/{tree}"):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))


def _guard_proc() -> None:
    """Kernel settings read-only, memory hidden. File modes protect them from a shifted root; this is for the
    sandbox whose root keeps id 0 outside, to whom those modes give way."""
    for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"):
        _remount_over(path, path)
    for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms"):
        _remount_over("/dev/null", path)


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
