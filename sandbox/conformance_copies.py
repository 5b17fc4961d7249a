"""Conformance: files and trees copied in and out, and file calls while a process inside changes the paths."""

import asyncio
import os
import stat
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from sandbox.conformance_base import PLENTY_S, check, expect, expect_result
from sandbox.types import Backend, SandboxSpec

_TREE = (
    "mkdir -p d/e; printf x > d/e/f; chmod 4755 d/e/f; ln -s /etc/passwd l; ln -s loop loop; mkfifo p; "
    "printf n > $'a\\nb'; printf q > $'\\xff'; truncate -s 1T sparse; mkdir -m 500 closed; printf c > d/c"
)
_RACE = (
    "while :; do mv a b; ln -s {outside} a; rm a; mv b a; mv a/f a/g; ln -s {outside}/secret a/f; rm a/f; "
    "mv a/g a/f; done"
)
_ROUNDS = 60
_SECRET = b"host secret"


def _make_tree(root: Path) -> None:
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f").write_bytes(os.urandom(1_000_000))
    (root / "d" / "e" / "f").chmod(0o751)
    (root / "l").symlink_to("/etc/shadow")
    (root / "loop").symlink_to("loop")
    (root / "a\nb").write_text("n")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).write_text("q")
    os.mkfifo(root / "p")
    with (root / "sparse").open("wb") as file:
        file.seek(1 << 38)
        file.write(b"middle")
        file.truncate(1 << 40)


async def _fails(call: Awaitable[object], kinds: tuple[type[BaseException], ...], what: str) -> None:
    try:
        await call
    except kinds:
        return
    expect(False, f"{what} should raise {kinds}")


@check(needs=("root",))
async def trees_go_in_and_come_back(backend: Backend) -> None:
    """Bytes, modes, odd names, links as links, holes as holes; no FIFO."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        source, back = Path(name) / "source", Path(name) / "back"
        _make_tree(source)
        async with await backend.open(SandboxSpec(workdir="/tmp")) as sandbox:
            for _ in range(2):  # the second time everything is there already
                await sandbox.upload(source, "/new/parent/tree")
            script = "cd /new/parent/tree; stat -c %a%u d/e/f; ls -d *e* | wc -l; test ! -e p && echo no FIFO"
            result = await sandbox.exec(["sh", "-c", script], timeout_s=PLENTY_S)
            expect_result(result, 0, b"7510\n1\nno FIFO\n", "modes kept, owner is root inside, no FIFO")
            await sandbox.download("/new/parent/tree", back)
            await sandbox.upload(source / "a\nb", "/tmp/single")
            await sandbox.download("/tmp/single", Path(name) / "single")
        expect((back / "d/e/f").read_bytes() == (source / "d/e/f").read_bytes(), "the same bytes")
        expect(stat.S_IMODE((back / "d/e/f").stat().st_mode) == 0o751, "the same mode")
        expect((back / "l").readlink() == Path("/etc/shadow"), "links are links")
        expect(sorted(os.listdir(back)) == sorted(set(os.listdir(source)) - {"p"}), "names", os.listdir(back))
        status = (back / "sparse").stat()
        expect(status.st_size == 1 << 40 and status.st_blocks < 10_000, "holes stay holes", status)
        expect((Path(name) / "single").read_text() == "n", "a single file")


@check(needs=("root",))
async def hostile_trees_come_out_harmless(backend: Backend) -> None:
    """What a process inside made: no set-id bit, no device, no link followed; limits and targets hold."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        out = Path(name)
        async with await backend.open(SandboxSpec(workdir="/tmp")) as sandbox:
            made = await sandbox.exec(["bash", "-c", f"mkdir t; cd t; {_TREE}"], timeout_s=PLENTY_S)
            expect_result(made, 0, b"", "the tree")
            await sandbox.download("/tmp/t", out / "t")
            expect(stat.S_IMODE((out / "t/d/e/f").stat().st_mode) == 0o755, "no set-id bit")
            expect((out / "t/l").is_symlink() and not (out / "t/p").exists(), "link kept, FIFO left out")
            await _fails(sandbox.download("/tmp/t", out / "t"), (FileExistsError,), "an existing target")
            await _fails(sandbox.download("/tmp/no", out / "x"), (FileNotFoundError,), "a missing source")
            for special in ("/tmp/t/p", "/dev/zero"):
                await _fails(sandbox.download(special, out / "x"), (ValueError,), special)
            await sandbox.exec(["bash", "-c", "head -c 100000 /dev/zero > t/big"], timeout_s=PLENTY_S)
            small = sandbox.download("/tmp/t", out / "x", limit_bytes=50_000)
            await _fails(small, (ValueError,), "more than limit_bytes")
            deep = "mkdir -p deep/$(printf 'd/%.0s' {1..600})"
            made = await sandbox.exec(["bash", "-c", deep], timeout_s=PLENTY_S)
            expect_result(made, 0, b"", "the deep tree")
            await _fails(sandbox.download("/tmp/deep", out / "x"), (ValueError,), "a bottomless tree")
            expect(not (out / "x").exists(), "nothing is left of what failed")
            # Few programs: under emulation a hundred of them outlast the limit.
            long = "mkdir long; cd long; p=$(printf %0200d/ {0..9}); for i in {0..9}; do mkdir -p $p; cd $p;"
            made = await sandbox.exec(["bash", "-c", f"{long} done"], timeout_s=PLENTY_S)
            expect_result(made, 0, b"", "the long tree")
            await sandbox.download("/tmp/long", out / "long")
            expect(len(os.listdir(out / "long")) == 1, "longer than any path may be")


@check(needs=("root",))
async def races_lead_nowhere(backend: Backend) -> None:
    """File calls while a process inside swaps the files and directories for links to the outside."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        out = Path(name)
        out.chmod(0o755)
        (out / "secret").write_bytes(_SECRET)
        (out / "harmless").write_bytes(b"harmless")
        async with await backend.open(SandboxSpec(workdir="/tmp")) as sandbox:
            session = await sandbox.open_session()
            await session.run("mkdir -p r/a; echo inside > r/a/f; cd r", timeout_s=PLENTY_S)
            await session.run(f"({_RACE.format(outside=name)}) 2>/dev/null &", timeout_s=PLENTY_S)
            for number in range(_ROUNDS):
                await _race_round(sandbox_calls=(
                    sandbox.read_file("/tmp/r/a/f"),
                    sandbox.write_file("/tmp/r/a/f", b"inside"),
                    sandbox.download("/tmp/r", out / f"copy{number}"),
                    sandbox.upload(out / "harmless", "/tmp/r/a/new"),
                    sandbox.diff("/tmp/r"),
                ))  # fmt: skip
        expect((out / "secret").read_bytes() == _SECRET, "the file outside is as it was")
        expect(
            sorted(p for p in os.listdir(out) if not p.startswith("copy")) == ["harmless", "secret"],
            "nothing new",
        )
        for copy in out.glob("copy*/**/f"):
            if not copy.is_symlink():
                expect(copy.read_bytes() != _SECRET, "no copy holds the secret")


async def _race_round(sandbox_calls: tuple[Awaitable[object], ...]) -> None:
    for result in await asyncio.gather(*sandbox_calls, return_exceptions=True):
        leaked = result == _SECRET or (isinstance(result, str) and _SECRET.decode() in result)
        expect(not leaked, "nothing outside is read", result)
        if isinstance(result, BaseException):
            expect(isinstance(result, OSError | ValueError), "only errors of files", result)
