"""The small project in real sandboxes: its layers, and how to open them."""

import compileall
import importlib.metadata
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from sandbox.types import BindMount, SandboxSpec
from tests.rewards.project import SPEC, write_project

PYTHON = "/opt/venv/bin/python"
MINI_SPEC = replace(SPEC, command=(PYTHON, "-m", "pytest"))


def make_layers(root: Path) -> SandboxSpec:
    """A project layer over a layer with a venv that holds only pytest."""
    write_project(root / "project")
    venv, prefix = root / "venv/opt/venv", Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = venv / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), packages / file)
    compileall.compile_dir(packages, quiet=2)
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to(f"/opt/python/bin/{version}")
    (venv / "pyvenv.cfg").write_text("home = /opt/python/bin\ninclude-system-site-packages = false\n")
    env = {"PATH": "/opt/venv/bin:/usr/bin:/bin"}
    if any(prefix.glob("lib/libpython*.so*")):
        env["LD_LIBRARY_PATH"] = "/opt/python/lib"
    return SandboxSpec(
        layers=(root / "project", root / "venv"),
        binds=(BindMount(source=prefix, target="/opt/python"),),
        env=env,
        workdir="/testbed",
    )
