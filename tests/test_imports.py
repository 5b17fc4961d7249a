"""The import rules that a linter cannot see: what is loaded, and what only named modules may import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("ray", "torch", "skyrl", "skyrl_gym", "vllm", "hydra", "omegaconf", "wandb", "transformers", "numpy")
OF_EXTRA_REX = ("sandbox.rex", "sandbox.mini_swe_agent")
"""Adapters to SWE-ReX and mini-swe-agent, for those who install the extra; nothing else may load these."""
HEAVY += ("swerex", "minisweagent", "pydantic")
RAY_MODULES = {
    "recipes/swe/experiment.py",
    "recipes/swe/fanout.py",
    "recipes/swe/gpu_workers.py",
    "recipes/swe/io_gate.py",
    "recipes/swe/placement.py",
}
"""Fan-out with its placement, workers that take the place of SkyRL's, the experiment that starts and stops
Ray, and fetching of layers in tasks; recipes/cpu starts Ray where there is no GPU."""
SKYRL_MODULES = {
    "recipes/swe/advantages.py",
    "recipes/swe/dynamic_sampling.py",
    "recipes/swe/experiment.py",
    "recipes/swe/generator.py",
    "recipes/swe/gpu_workers.py",
    "recipes/swe/output.py",
    "recipes/swe/tracking.py",
    "recipes/swe/trainers.py",
}
"""Those that plug into SkyRL; beside them recipes/cpu, which is SkyRL on a machine with no GPU."""


def modules(package: str) -> list[str]:
    files = sorted((ROOT / package).rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    return [name for name in names if not name.startswith(OF_EXTRA_REX)]


@pytest.mark.parametrize("package", ["sandbox", "rewards"])
def test_light_packages_load_nothing_heavy(package: str):
    # What lies in rewards/inside is copied into sandboxes and started there as a program of old Pythons:
    # its modules import each other by their bare names, from the folder that they lie in.
    code = (
        "import importlib, sys\n"
        "sys.path.append('rewards/inside')\n"
        f"for name in {modules(package)!r}: importlib.import_module(name)\n"
        f"print(sorted(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_train_command_loads_nothing_heavy():
    code = (
        f"import launch.train, sys; print(sorted(n for n in {HEAVY[:5] + HEAVY[7:]!r} if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def importers(*packages: str) -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "recipes").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if any(name.split(".")[0] in packages for name in names):
                found.add(str(file.relative_to(ROOT)))
    return found


def test_only_named_recipe_modules_import_skyrl():
    outside_cpu = {path for path in importers("skyrl", "skyrl_gym") if not path.startswith("recipes/cpu/")}
    assert outside_cpu <= SKYRL_MODULES


def test_only_named_recipe_modules_import_ray():
    outside_cpu = {path for path in importers("ray") if not path.startswith("recipes/cpu/")}
    assert outside_cpu <= RAY_MODULES


def test_no_module_of_launch_hides_a_package():
    names = {path.stem for path in (ROOT / "launch").glob("*.py")} - {"__init__"}
    assert not names & set(sys.stdlib_module_names)
    for name in names:
        spec = importlib_spec(name)
        assert spec is None, f"launch/{name}.py hides {spec}"


def importlib_spec(name: str) -> str | None:
    code = f"import importlib.util as u; s = u.find_spec({name!r}); print(s.origin if s else '')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout.strip() or None
