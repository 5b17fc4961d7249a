"""All attacks as scripts for an agent's shell, read from `scripts/` and from the recorded set.

A script file holds sections, `### kind | name` and a body. `*.sh.txt` bodies are shell; `*.py.txt` bodies are
Python that is appended to the file with the bug, in ways that `_WRAPPERS` says. `@TEST@` and `@NAME@` stand
for the target's test file and function. See `tests.rewards.targets` for the variables of a script.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent / "scripts"
RECORDED = Path(__file__).parents[2].parent / "shared" / "adversarial"
_SECTION = re.compile(r"^### (?:(.+) \| )?(.+)$", re.MULTILINE)
_END = "END_OF_ATTACK"


@dataclass(frozen=True)
class Attack:
    """One attack."""

    kind: str
    """What it tries."""
    name: str
    """Unique within its kind."""
    script: str
    """What the agent runs."""

    @property
    def id(self) -> str:
        """For test ids and tables."""
        return f"{self.kind}: {self.name}"


def _append(code: str) -> str:
    code = code.replace("@CR@", "\r")
    if code.startswith("@CODING@"):
        escaped = code.removeprefix("@CODING@").replace("\\", "\\\\")
        return f"sed -i '1i # coding: unicode_escape\\n{escaped}' $BUG\n"
    fill = 'sed -i "s#@TEST@#$TEST#g; s#@NAME@#$NAME#g" $BUG'
    return f"cat >> $BUG <<'{_END}'\n\n\n{code}\n{_END}\n{fill}\n"


def _always_equal(code: str) -> str:
    """Every public function of the module answers with an object that equals everything."""
    inside, _, after = code.partition("@AFTER@")
    body = "".join(f"    {line}\n" for line in (inside.strip() or "pass").split("\n"))
    methods = f"class Any:\n{body}    __hash__ = None\n    def __init__(self, *a): pass\n\n{after}\n"
    answers = (
        "for _name, _value in list(globals().items()):\n"
        "    if callable(_value) and not _name.startswith('_') and _name != 'Any':\n"
        "        globals()[_name] = lambda *a, **k: Any()\n"
    )
    return _append(methods + "\n" + answers)


def _test_aware(code: str) -> str:
    """The right code, but only where a test seems to run."""
    return "cp $FIXED $(dirname $BUG)/_twin.py\n" + _append(f"{code}\nif KNOWN:\n    from ._twin import *\n")


_WRAPPERS: Mapping[str, Callable[[str], str]] = {
    "source": _append,
    "hidden": _append,
    "equal": _always_equal,
    "detectors": _test_aware,
}


def _read(path: Path) -> list[Attack]:
    stem, language, _ = path.name.split(".")
    pieces = _SECTION.split(path.read_text("utf-8"))[1:]
    found: list[Attack] = []
    for kind, name, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        script = body.strip("\n") if language == "sh" else _WRAPPERS[stem](body.strip("\n"))
        found.append(Attack(kind or stem, name, script))
    return found


def recorded() -> list[Attack]:
    """The recorded set, made for markupsafe; empty where it is not at hand. A diff is applied, a script is
    run after the refs that it relies on were made."""
    found: list[Attack] = []
    for path in sorted(RECORDED.glob("[0-9]*")):
        text = path.read_text("utf-8")
        if path.suffix == ".diff":
            script = f"git apply --whitespace=nowarn - <<'{_END}'\n{text}{_END}\n"
        else:
            script = f"git update-ref refs/remotes/origin/main HEAD\n{text}"
        found.append(Attack("recorded", path.stem, script))
    return found


def recorded_elsewhere() -> list[Attack]:
    """The recorded set for any target: new files lie where they did, but below the target's own tests; what
    was added to the product is appended to the file with the bug, what was added to tests to a test file."""
    found: list[Attack] = []
    for path in sorted(RECORDED.glob("[0-9]*")):
        text = path.read_text("utf-8")
        if path.suffix == ".diff":
            script = "".join(map(_adapted, text.split("diff --git ")[1:]))
        else:
            script = f"git update-ref refs/remotes/origin/main HEAD\n{text}"
        found.append(Attack("recorded, elsewhere", path.stem, script))
    return found


def _adapted(part: str) -> str:
    name = part.split("\n", 1)[0].split(" b/", 1)[1]
    body = part.partition("\n@@")[2].partition("\n")[2]
    added = "\n".join(line[1:] for line in body.split("\n") if line.startswith("+"))
    where = name
    if name.startswith("tests/"):
        where = "$TEST" if "/test_" in name else f"$(dirname $TEST)/{name.removeprefix('tests/')}"
    elif name.startswith("src/markupsafe/"):
        where = "$BUG"
    mode = ">" if "\nnew file" in part else ">>"
    return f"mkdir -p $(dirname {where})\ncat {mode} {where} <<'{_END}'\n{added}\n{_END}\n"


def catalogue() -> list[Attack]:
    """Every attack of our own, for any target."""
    return [attack for path in sorted(HERE.glob("*.txt")) for attack in _read(path)]
