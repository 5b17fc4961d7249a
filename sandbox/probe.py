"""Finds out what this machine can do for sandboxes by doing it, in a child process.

Never concludes from a version. `probe()` is for callers; run as `main` in a light child interpreter it
tries each facility in a forked process of its own and prints JSON. `launch/doctor.py` shows the result.
"""

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sandbox import cgroup, fscontext, landlock, namespaces, overlay, seccomp, syscalls

_CHILD = "import sys; sys.path.insert(0, sys.argv.pop()); from sandbox.probe import main; main()"
_TIMEOUT_S = 60.0
_MOUNT_NAMESPACES = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS

_USERNS_FIX = (
    "allow user namespaces: sysctl user.max_user_namespaces=15000, and where they exist "
    "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0; in a container "
    "also run it with --security-opt seccomp=unconfined (or --privileged)"
)
_MOUNT_FIX = "a kernel of 5.12 or later; in a container, a seccomp profile that allows mount calls"


@dataclass(frozen=True, slots=True)
class Finding:
    """One facility."""

    name: str
    """What was tried."""
    ok: bool
    """Whether it worked."""
    required: bool
    """Without it no sandbox opens."""
    detail: str
    """What was found, or the error."""
    use: str
    """What it is used for, or what is lost without it."""
    fix: str
    """What to change where it does not work."""


def probe(directory: Path | None = None) -> tuple[Finding, ...]:
    """Try everything; `directory` is where layers lie (idmapped mounts depend on its file system).

    Blocks for a fraction of a second."""
    where = directory or Path(tempfile.gettempdir())
    done = subprocess.run(
        [sys.executable, "-I", "-c", _CHILD, str(where), str(Path(__file__).resolve().parent.parent)],
        capture_output=True, timeout=_TIMEOUT_S, check=False, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return (Finding("probe", False, True, last, "everything", "see the message"), *_programs())
    findings = cast(list[list[object]], json.loads(done.stdout))
    return (
        *(Finding(*cast(tuple[str, bool, bool, str, str, str], tuple(row))) for row in findings),
        *_programs(),
    )


def unusable_reason(directory: Path | None = None) -> str | None:
    """Why no sandbox can open here and what to change, in one line; None when one can."""
    missing = [finding for finding in probe(directory) if finding.required and not finding.ok]
    return "; ".join(f"{f.name}: {f.detail}. To change: {f.fix}" for f in missing) or None


def _programs() -> tuple[Finding, ...]:
    found: list[Finding] = []
    for name, use in (("bash", "sessions"), ("git", "patches, and the agent's own git")):
        path = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
        found.append(Finding(name, path is not None, True, path or "not in /usr", use, f"install {name}"))
    version = platform.python_version()
    ok = sys.version_info >= (3, 12)
    found.append(Finding("python", ok, True, f"{version}", "owner and helper", "Python 3.12 or later"))
    return tuple(found)


# -- below: runs in the child interpreter


def main() -> None:
    """Entry of the child interpreter: argv is DIRECTORY."""
    directory = sys.argv[1]
    root = os.geteuid() == 0
    tries = (
        _try("architecture", True, "system call numbers", "x86_64 or aarch64", syscalls.machine),
        _try("user namespaces", True, "root inside is nobody outside", _USERNS_FIX, _user_namespace),
        _try("all namespaces", True, "processes, mounts, network, ipc, hostname apart", _USERNS_FIX, _all),
        _try("new mount calls", True, "read-only binds", _MOUNT_FIX, lambda: _inside(_attach_read_only)),
        _try("overlay", False, _OVERLAY_USE, _MOUNT_FIX, lambda: _inside(_overlay)),
        _try("overlay on tmpfs", False, _MARKS_USE, _MARKS_FIX, lambda: _inside(_overlay_marks)),
        _try("private /proc", True, "own processes only", _PROC_FIX, _private_proc),
        _try("seccomp", True, "system-call filter", "a kernel with CONFIG_SECCOMP_FILTER", _filter),
        _idmapped(directory) if root else _not_root(),
        _cgroups(),
        _try("image layers", False, _IMAGES_USE, _IMAGES_FIX, _images),
        _try("landlock", False, _LANDLOCK_USE, _LANDLOCK_FIX, _landlock),
    )
    sys.stdout.write(json.dumps([[f.name, f.ok, f.required, f.detail, f.use, f.fix] for f in tries]))


_PROC_FIX = (
    "a fully visible /proc: in a container run it with --security-opt systempaths=unconfined (docker) or "
    "--security-opt unmask=ALL (podman)"
)


_OVERLAY_USE = "shared layers, private upper; without, layers are copied for each sandbox (mode copies)"
_MARKS_USE = "files written in memory; without, they go to the state directory's disk, else mode copies"
_MARKS_FIX = "kernel 6.6 or later, or upper=disk"
_IMAGES_USE = "squashfs and erofs images as layers; without, layers are directories (sandbox.unpack)"
_IMAGES_FIX = "run as root with the kernel's squashfs and erofs and /dev/loop-control"
_LANDLOCK_USE = "the weaker mode for machines without user namespaces, only where it is asked for"
_LANDLOCK_FIX = "a kernel of 6.12 or later with landlock in its lsm= list"


def _images() -> str:
    os.close(os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC))
    return ", ".join(fscontext.openable(("erofs", "squashfs")))


def _landlock() -> str:
    version = landlock.abi()
    if version < landlock.SCOPE_ABI:
        raise OSError(errno.EOPNOTSUPP, f"version {version}; {landlock.SCOPE_ABI} keeps signals inside")
    return f"version {version}"


def _try(name: str, required: bool, use: str, fix: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, required, attempt(), use, "")
    except OSError as error:
        return Finding(name, False, required, error.strerror or str(error), use, fix)


def _not_root() -> Finding:
    return Finding(
        "idmapped mounts", False, False, "ordinary user", "layers must belong to this user", "not needed"
    )


def _in_child(body: Callable[[], str], flags: int, *, shifted: bool) -> str:
    """Run `body` in new namespaces as id 0; its text, or its OSError."""
    ready_read, ready_write = os.pipe()
    result_read, result_write = os.pipe()
    uid, gid = os.geteuid(), os.getegid()
    pid = syscalls.clone(flags)
    if pid == 0:
        os.close(ready_write)
        code, text = 0, ""
        try:
            os.read(ready_read, 1)
            text = body()
        except OSError as error:
            code, text = error.errno or 1, str(error.strerror or error)
        finally:
            os.write(result_write, text.encode())
            os._exit(min(code, 255))
    os.close(ready_read)
    os.close(result_write)
    try:
        if flags & syscalls.CLONE_NEWUSER:
            namespaces.write_maps(
                pid, base=namespaces.SHIFT_BASE if shifted else None, outside_uid=uid, outside_gid=gid
            )
        os.write(ready_write, b"g")
    finally:
        os.close(ready_write)
        with os.fdopen(result_read, "rb") as file:
            text = file.read().decode("utf-8", "replace")
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise OSError(code, text or f"ended with status {code}")
    return text


def _inside(body: Callable[[], str]) -> str:
    return _in_child(body, _MOUNT_NAMESPACES, shifted=False)


def _user_namespace() -> str:
    return _in_child(lambda: "yes", syscalls.CLONE_NEWUSER, shifted=False)


def _all() -> str:
    def body() -> str:
        namespaces.bring_up_loopback()
        return "user, mount, pid, ipc, uts, net, cgroup; loopback up"

    return _in_child(body, namespaces.flags(own_network=True), shifted=False)


def _scratch() -> str:
    """A private tmpfs to try things in; gone with the namespace."""
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    syscalls.mount("tmpfs", "/tmp", "tmpfs", 0, "mode=700")
    return "/tmp"


def _attach_read_only() -> str:
    target = os.path.join(_scratch(), "usr")
    os.mkdir(target)
    tree = syscalls.open_tree("/usr")
    syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID)
    syscalls.move_mount(tree, target)
    return "open_tree, mount_setattr, move_mount"


def _overlay() -> str:
    try:
        _overlay_marks()
    except overlay.MarksError:
        pass  # a finding of its own
    return "mounted"


def _overlay_marks() -> str:
    os.chdir(_scratch())
    os.mkdir("root")
    overlay.exercise()
    return "deletions work"


def _private_proc() -> str:
    def body() -> str:
        base = _scratch()
        syscalls.mount("proc", base, "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        return "mounted"

    return _in_child(body, _MOUNT_NAMESPACES | syscalls.CLONE_NEWPID, shifted=False)


def _filter() -> str:
    def body() -> str:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(seccomp.build(syscalls.machine()))
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER)
        except PermissionError:
            return "filter holds"
        raise OSError("the filter let a denied call through")

    return _in_child(body, 0, shifted=False)


def _idmapped(directory: str) -> Finding:
    def attempt() -> str:
        userns = namespaces.idmap_userns()
        tree = syscalls.open_tree(directory)
        try:
            syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, userns)
        finally:
            os.close(tree)
            os.close(userns)
        return f"for {directory}; root inside is an id of its own outside, {namespaces.SHIFT_BASE} or above"

    lost = "ids shifted; without, root inside keeps root's id outside (still without any capability)"
    fix = "keep state and layers on ext4, xfs, btrfs or tmpfs, not on a network or overlay file system"
    return _try("idmapped mounts", False, lost, fix, attempt)


def _cgroups() -> Finding:
    lost = "limits of memory and process count"
    fix = "a writable cgroup: run as root, or with systemd delegation; else per-process rlimits are used"
    try:
        groups = cgroup.Cgroups(f"probe-{os.getpid()}")
    except OSError as error:
        return Finding("cgroups", False, False, str(error), lost, fix)
    try:
        ok = {"memory", "pids"} <= set(groups.controllers)
        return Finding(
            "cgroups", ok, False, f"{groups.version}: {', '.join(groups.controllers) or 'none'}", lost, fix
        )
    finally:
        groups.remove_all()
