"""Boots another kernel in qemu over a Linux file tree and runs what `guest.py` lists there.

`python tests/kernels/run.py UNPACKED_KERNEL_PACKAGE` with a Debian `linux-image-*-amd64` or `-arm64` unpacked
by `dpkg-deb -x` (nothing is installed). Needs qemu-system-x86 or -arm, busybox-static and cpio. The guest
sees this machine's root, or that of `--root` (`make_root.sh` makes one), read-only over 9p, its own tmpfs on
/tmp, and cgroup v2 alone. No KVM is needed. Not a test of pytest's: what it finds depends on the kernel.
"""

import argparse
import compileall
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import modules

_REPOSITORY = Path(__file__).resolve().parents[2]
_TESTS = ("__init__.py", "ordinary_user.py", "landlock_attacks.py", "probes")
_QEMU = {
    "amd64": ["qemu-system-x86_64", "-cpu", "max"],
    "arm64": ["qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72"],
}
_CONSOLE = {"amd64": "ttyS0", "arm64": "ttyAMA0"}

_INIT = """\
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc p /proc; $b mount -t sysfs s /sys; $b mount -t devtmpfs d /dev
for m in /m/*.ko; do $b insmod $m || echo "not loaded: $m"; done
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /new || $b poweroff -f
$b mount -t tmpfs t /new/tmp; $b mount -t tmpfs t /new/run
$b mount -t proc p /new/proc; $b mount -t sysfs s /new/sys; $b mount -t devtmpfs d /new/dev
$b mount -t cgroup2 c /new/sys/fs/cgroup
$b ip link set lo up
echo "kernel $($b uname -r) $($b uname -m)"
$b cat > /new/tmp/main <<'MAIN'
cp -a @SOURCE@ /tmp/source; cd /tmp/source
# Only where this Python is not the one that the modules were compiled with.
@PYTHON@ -m compileall -q . >/dev/null
cat /sys/fs/cgroup/cgroup.controllers
for c in $(cat /sys/fs/cgroup/cgroup.controllers); do echo +$c > /sys/fs/cgroup/cgroup.subtree_control; done
mkdir /sys/fs/cgroup/me; echo $$ > /sys/fs/cgroup/me/cgroup.procs
STEP_S=@SECONDS@ @PYTHON@ guest.py @STEPS@
echo o > /proc/sysrq-trigger; sleep 60
MAIN
# Not chroot: a process in one may make no user namespace, user_namespaces(7).
exec $b switch_root /new /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \\
    sh /tmp/main
"""


def _initramfs(package: Path, work: Path, busybox: Path, values: dict[str, str]) -> Path:
    root = work / "root"
    for name in ("bin", "m", "proc", "sys", "dev", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin")
    modules.unpack(package, root / "m")
    text = _INIT
    for mark, value in values.items():
        text = text.replace(f"@{mark}@", value)
    init = root / "init"
    init.write_text(text)
    init.chmod(0o755)
    target = work / "initramfs"
    names = b"\n".join(str(path.relative_to(root)).encode() for path in [root, *sorted(root.rglob("*"))])
    command = ["cpio", "-o", "-H", "newc", "--quiet"]
    with target.open("wb") as file:
        subprocess.run(command, cwd=root, input=names, stdout=file, check=True)
    return target


def _copy_source(source: Path) -> None:
    """A copy, since somebody may be editing; compiled, which under emulation would double the time."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_REPOSITORY / "sandbox", source / "sandbox", ignore=ignored)
    tests = source / "tests" / "sandbox"
    tests.mkdir(parents=True)
    (tests.parent / "__init__.py").touch()
    for name in _TESTS:
        path = _REPOSITORY / "tests" / "sandbox" / name
        if path.is_dir():
            shutil.copytree(path, tests / name, ignore=ignored)
        else:
            shutil.copy(path, tests / name)
    shutil.copy(Path(__file__).with_name("guest.py"), source)
    compileall.compile_dir(source, quiet=1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("steps", nargs="*", help="WHO or WHO:COMMAND, see guest.py")
    parser.add_argument("--root", type=Path, default=Path("/"), help="files of the guest")
    parser.add_argument("--python", help="its interpreter; with another root /usr/bin/python3")
    parser.add_argument("--memory", default="2048", help="MiB of the guest")
    parser.add_argument("--seconds", default="400", help="time limit of a step")
    return parser.parse_args()


def main() -> int:
    """Print what the guest printed; qemu's status."""
    options = _options()
    root: Path = options.root.resolve()
    (kernel,) = options.package.glob("boot/vmlinuz-*")
    architecture = kernel.name.rpartition("-")[2]
    # Not below /tmp, which is the guest's own.
    with tempfile.TemporaryDirectory(dir=root / "var/tmp") as name:
        work = Path(name)
        work.chmod(0o755)
        _copy_source(work / "source")
        values = {
            "SOURCE": f"/{(work / 'source').relative_to(root)}", "STEPS": " ".join(options.steps),
            "PYTHON": options.python or (sys.executable if root == Path("/") else "/usr/bin/python3"),
            "SECONDS": options.seconds,
        }  # fmt: skip
        initramfs = _initramfs(options.package, work, root / "usr/bin/busybox", values)
        share = f"local,path={root},security_model=none,mount_tag=root,readonly=on,multidevs=remap"
        return subprocess.run(
            [*_QEMU[architecture], "-accel", "tcg,thread=multi", "-smp", "2",
             "-m", options.memory, "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot",
             "-kernel", kernel, "-initrd", initramfs,
             "-append", f"console={_CONSOLE[architecture]} quiet panic=-1", "-virtfs", share],
            check=False,
        ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
