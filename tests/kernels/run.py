"""Boots another kernel in qemu over this machine's files and runs what `guest.py` lists there.

`python tests/kernels/run.py UNPACKED_KERNEL_PACKAGE` with a Debian `linux-image-*-amd64` unpacked by
`dpkg-deb -x` (nothing is installed). Needs qemu-system-x86, busybox-static and cpio. The guest sees this
machine's root read-only over 9p, its own tmpfs on /tmp, and cgroup v2 alone. No KVM is needed: about a minute
and a half to the first result on a busy machine. Not a test of pytest's: what it finds depends on the kernel.
"""

import argparse
import compileall
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
_MODULES = (
    "virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "fscache",
    "netfs", "9pnet", "9pnet_virtio", "9p", "overlay",
)  # fmt: skip

# Modules are loaded in whatever order works, so four times over: the package has no dependency list yet.
_INIT = """\
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc p /proc; $b mount -t sysfs s /sys; $b mount -t devtmpfs d /dev
for i in 1 2 3 4; do for m in /m/*.ko; do $b insmod $m 2>/dev/null; done; done
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /new || $b poweroff -f
$b mount -t tmpfs t /new/tmp; $b mount -t tmpfs t /new/run
$b mount -t proc p /new/proc; $b mount -t sysfs s /new/sys; $b mount -t devtmpfs d /new/dev
$b mount -t cgroup2 c /new/sys/fs/cgroup
$b ip link set lo up
echo "kernel $($b uname -r)"
$b cat > /new/tmp/main <<'MAIN'
cd @SOURCE@
cat /sys/fs/cgroup/cgroup.controllers
for c in $(cat /sys/fs/cgroup/cgroup.controllers); do echo +$c > /sys/fs/cgroup/cgroup.subtree_control; done
mkdir /sys/fs/cgroup/me; echo $$ > /sys/fs/cgroup/me/cgroup.procs
STEP_S=@SECONDS@ @PYTHON@ guest.py @STEPS@
echo o > /proc/sysrq-trigger; sleep 60
MAIN
# Not chroot: a process in one may make no user namespace, user_namespaces(7).
exec $b switch_root /new /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 sh /tmp/main
"""


def _initramfs(package: Path, work: Path, source: Path, steps: str, seconds: str) -> Path:
    root = work / "root"
    for name in ("bin", "m", "proc", "sys", "dev", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", root / "bin")
    for name in _MODULES:
        for path in package.glob(f"**/kernel/**/{name}.ko*"):
            copied = Path(shutil.copy(path, root / "m"))
            if copied.suffix == ".xz":
                subprocess.run(["unxz", copied], check=True)
    init = root / "init"
    values = {"@SOURCE@": str(source), "@PYTHON@": sys.executable, "@STEPS@": steps, "@SECONDS@": seconds}
    text = _INIT
    for mark, value in values.items():
        text = text.replace(mark, value)
    init.write_text(text)
    init.chmod(0o755)
    target = work / "initramfs"
    names = b"\n".join(str(path.relative_to(root)).encode() for path in [root, *sorted(root.rglob("*"))])
    with target.open("wb") as file:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names, stdout=file, check=True
        )
    return target


def main() -> int:
    """Print what the guest printed; qemu's status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("steps", nargs="*", help="WHO or WHO:COMMAND, see guest.py")
    parser.add_argument("--memory", default="2048", help="MiB of the guest")
    parser.add_argument("--seconds", default="400", help="time limit of a step")
    options = parser.parse_args()
    (kernel,) = options.package.glob("boot/vmlinuz-*")
    # Not below /tmp, which is the guest's own; a copy, since somebody may be editing.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        work = Path(name)
        work.chmod(0o755)
        source = work / "source"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_REPOSITORY / "sandbox", source / "sandbox", ignore=ignored)
        shutil.copy(Path(__file__).with_name("guest.py"), source)
        # Under emulation a compilation at every start would double the time.
        compileall.compile_dir(source, quiet=1)
        initramfs = _initramfs(options.package, work, source, " ".join(options.steps), options.seconds)
        share = "local,path=/,security_model=none,mount_tag=root,readonly=on,multidevs=remap"
        return subprocess.run(
            ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
             "-m", options.memory, "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot",
             "-kernel", kernel, "-initrd", initramfs,
             "-append", "console=ttyS0 quiet panic=-1", "-virtfs", share],
            check=False,
        ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
