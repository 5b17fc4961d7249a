"""Conformance: file calls, patches and layers."""

from sandbox.conformance_base import PLENTY_S, check, expect, expect_result, layered
from sandbox.types import Backend, SandboxSpec


@check(needs=("root",))
async def files_are_regular_and_inside(backend: Backend) -> None:
    """read_file and write_file: errors, links, parents, modes."""
    async with await backend.open(SandboxSpec(workdir="/tmp")) as sandbox:
        await sandbox.write_file("/a/b/c.bin", bytes(range(256)), mode=0o755)
        expect(await sandbox.read_file("/a/b/c.bin") == bytes(range(256)), "bytes come back")
        result = await sandbox.exec(["stat", "-c", "%a %u", "/a/b/c.bin"], timeout_s=PLENTY_S)
        expect_result(result, 0, b"755 0\n", "mode and owner")
        await sandbox.write_file("/a/b/c.bin", b"short")
        expect(await sandbox.read_file("/a/b/c.bin") == b"short", "replaced, not overwritten")
        setup = "mkfifo /fifo; ln -s /etc /link; ln -s /../../../etc/passwd /up; ln -s loop /loop; mkdir /d"
        await sandbox.exec(["sh", "-c", setup], timeout_s=PLENTY_S)
        inside = await sandbox.read_file("/etc/passwd")
        expect(await sandbox.read_file("/link/passwd") == inside, "links resolve inside")
        expect(await sandbox.read_file("/up") == inside, "links upwards resolve inside")
        for path, kinds in (
            ("/missing", (FileNotFoundError,)),
            ("/d", (IsADirectoryError,)),
            ("/fifo", (ValueError,)),
            ("/dev/zero", (ValueError,)),
            ("/loop", (OSError,)),
            ("/etc/passwd\0x", (OSError,)),
            ("/\ud800", (OSError,)),
        ):
            try:
                await sandbox.read_file(path)
            except kinds:
                continue
            expect(False, f"reading {path} should raise {kinds}")
        try:
            await sandbox.read_file("/etc/passwd", limit_bytes=3)
        except ValueError:
            return
        expect(False, "limit_bytes is kept")


@check(needs=("root",))
async def diff_is_a_git_patch(backend: Backend) -> None:
    """Changes, new and deleted files, modes and links; nothing of .git; empty when undone."""
    async with layered(backend) as (sandbox, _):
        expect(await sandbox.diff("/testbed") == "", "nothing changed")
        script = (
            "sed -i s/two/2/ pkg/a.py; rm pkg/b.py; echo n > new.txt; chmod +x run.sh; ln -s pkg/a.py l; "
            "mkdir .git; echo x > .git/y; mkfifo ff"
        )
        expect_result(await sandbox.exec(["sh", "-c", script], timeout_s=PLENTY_S), 0, b"", "changes")
        patch = await sandbox.diff("/testbed")
        for line in (
            "diff --git a/pkg/a.py b/pkg/a.py", "-two", "+2", "deleted file mode 100644", "--- a/pkg/b.py",
            "+++ b/new.txt", "new mode 100755", "new file mode 120000",
        ):  # fmt: skip
            expect(line in patch.splitlines(), f"patch has {line!r}", patch)
        expect(".git/" not in patch and "ff" not in patch.split(), "no .git, no fifo", patch)
        undo = "git apply -R --unsafe-paths -p1 - 2>&1 || exit 1"
        async with layered(backend) as (fresh, _):
            await fresh.write_file("/tmp/p", patch.encode())
            applied = await fresh.exec(["git", "apply", "/tmp/p"], timeout_s=PLENTY_S)
            expect_result(applied, 0, b"", "git apply takes it")
            expect(await fresh.diff("/testbed") == patch, "and gives the same patch")
            await fresh.exec(["sh", "-c", undo], stdin=patch.encode(), timeout_s=PLENTY_S)
            expect(await fresh.diff("/testbed") == "", "and nothing once reversed")


@check(needs=("root",))
async def layers_are_shared_unchanged(backend: Backend) -> None:
    """Writes stay in the sandbox that made them."""
    async with layered(backend) as (sandbox, root):
        await sandbox.exec(["sh", "-c", "rm -r pkg; echo x > run.sh"], timeout_s=PLENTY_S)
        expect(
            (root / "run.sh").read_text() == "echo hi\n" and (root / "pkg" / "a.py").exists(), "layer kept"
        )
