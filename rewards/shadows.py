"""New top-level modules that would hide one installed in the environment, say a library of the tests.

`hypothesis.py` in the repository root makes every `@given` test pass. Only the environment knows what is
installed, so it is asked, before the patch is applied: nothing of the agent's runs. Asked only when a patch
makes a top-level module at all. A module that the repository itself had already hides nothing new.
"""

import json
from collections.abc import Collection, Mapping, Sequence

from rewards.errors import GraderError
from rewards.policy import Division, PatchPolicy
from rewards.types import GradingSandbox

_TIMEOUT_S = 30.0
_SCRIPT = """
import json, os, sys
from importlib.machinery import PathFinder
work, modules, known = json.loads(sys.stdin.read())
path = [entry for entry in sys.path if not os.path.realpath(entry).startswith(os.path.realpath(work))]
def has(*parts):
    return os.path.exists(os.path.join(work, *parts))
def hides(name, roots):
    # A folder that is a package is on nobody's path.
    roots = [root for root in roots if root in known or not has(root, "__init__.py")]
    return bool(roots) and not any(has(root, name + end) for root in roots for end in ("", ".py"))
found = [name for name in modules if name in sys.builtin_module_names or PathFinder.find_spec(name, path)]
hidden = [name for name in found if hides(name, modules[name])]
sys.stdout.write("hidden:" + json.dumps(hidden))
"""


async def drop_shadows(
    division: Division,
    policy: PatchPolicy,
    test_files: Sequence[str],
    sandbox: GradingSandbox,
    *,
    workdir: str,
    python: str = "python",
) -> Division:
    """The division without the parts that hide an installed module. Raises GraderError."""
    modules = policy.new_modules(division.kept, test_files)
    if not modules:
        return division
    hidden = await _installed(modules, sandbox, workdir, python, policy.roots(test_files))
    shadows = [part for part in division.kept if hidden & set(policy.new_modules((part,), test_files))]
    return division.without(shadows, "shadows an installed module")


async def _installed(
    modules: Mapping[str, set[str]],
    sandbox: GradingSandbox,
    workdir: str,
    python: str,
    known: Collection[str],
) -> set[str]:
    places = {name: sorted(roots) for name, roots in modules.items()}
    request = json.dumps([workdir, places, sorted(known)])
    argv = (python, "-I", "-c", _SCRIPT)
    try:
        done = await sandbox.exec(argv, timeout_s=_TIMEOUT_S, cwd="/", stdin=request.encode())
    except Exception as error:
        raise GraderError(f"the sandbox failed before the patch was applied: {error!r}", "sandbox") from error
    _, found, answer = done.output.decode("utf-8", "replace").rpartition("hidden:")
    if done.exit_status != 0 or not found:
        raise GraderError(f"the environment cannot say what is installed: {answer[-300:]}", "start")
    return set(json.loads(answer))
