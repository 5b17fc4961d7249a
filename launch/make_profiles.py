"""Writes configs/data/profiles/: how the repositories of the public data sets are installed and tested.

Facts only (versions, requirements, commands, parser names), read from the registries of swebench and swesmith
(extra `data`), so that nothing at run time needs these packages or a network:
`python launch/make_profiles.py`, or `--check` to compare what is committed. The output depends on nothing but
the two packages. What we know better stands in `adjustments.yaml`, which is written by hand.

Exit status: 0 done or equal, 1 they differ, 3 the packages are missing or have another version.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # launch/ itself there would shadow modules

from launch.exit_codes import FAILED, OK, UNUSABLE_MACHINE

PROFILES_DIR = Path(__file__).resolve().parents[1] / "configs" / "data" / "profiles"
VERSIONS = {"swebench": "4.1.0", "swesmith": "0.0.9"}
_SPEC_FIELDS = ("python", "packages", "pip_packages", "pre_install", "install", "test_cmd", "eval_commands")
"""Of a specification of swebench. Left out: docker_specs, nano_cpus, execute_test_as_nonroot, no_use_env."""
_NOT_REPOSITORIES = frozenset({"swe-bench/humaneval"})


def swebench_profiles() -> dict[str, Any]:
    """Repository -> specifications, versions with the same one together."""
    from swebench.harness.constants import python as registry  # pyright: ignore
    from swebench.harness.log_parsers.python import MAP_REPO_TO_PARSER_PY  # pyright: ignore

    repos: dict[str, Any] = {}
    for repo, versions in sorted(registry.MAP_REPO_VERSION_TO_SPECS_PY.items()):
        if repo in _NOT_REPOSITORIES:
            continue
        parser = MAP_REPO_TO_PARSER_PY.get(repo)
        repos[repo] = {
            "log_parser": parser.__name__ if parser else "",
            "requirement_files": list(registry.MAP_REPO_TO_REQS_PATHS.get(repo, ())),
            "environment_files": list(registry.MAP_REPO_TO_ENV_YML_PATHS.get(repo, ())),
            "specs": _grouped(versions),
        }
    return {"source": f"swebench {VERSIONS['swebench']}", "repos": repos}


def _grouped(versions: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, list[str]] = {}
    for version, spec in versions.items():
        kept = {name: spec[name] for name in _SPEC_FIELDS if name in spec}
        groups.setdefault(json.dumps(kept, sort_keys=True), []).append(version)
    ordered = sorted((sorted(names), json.loads(text)) for text, names in groups.items())
    return [{"versions": names, **spec} for names, spec in ordered]


def swesmith_profiles() -> dict[str, Any]:
    """Name of the mirror (`owner__name.<8 hex>`) -> profile, for Python."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # importing swesmith reads a .env file and may make folders
        try:
            from swesmith.profiles.base import registry  # pyright: ignore
            from swesmith.profiles.python import PythonProfile  # pyright: ignore
        finally:
            os.chdir(home)
    repos: dict[str, Any] = {}
    for profile in registry.values():
        if not isinstance(profile, PythonProfile):
            continue
        own = type(profile).log_parser is not PythonProfile.log_parser
        repos[profile.repo_name] = {
            "owner": profile.owner,
            "name": profile.repo,
            "commit": profile.commit,
            "python": profile.python_version,
            "install": list(profile.install_cmds),
            "test_cmd": profile.test_cmd,
            "own_log_parser": own,
        }
    return {"source": f"swesmith {VERSIONS['swesmith']}", "repos": dict(sorted(repos.items()))}


def render(profiles: Mapping[str, Any]) -> str:
    """The text of a profile file: one line for each repository or specification, for readable changes."""
    lines = [f'{{"source": {json.dumps(profiles["source"])}, "repos": {{']
    for number, (repo, facts) in enumerate(profiles["repos"].items()):
        comma = "," if number + 1 < len(profiles["repos"]) else ""
        if "specs" in facts:
            head = json.dumps({name: value for name, value in facts.items() if name != "specs"})[:-1]
            specs = ",\n  ".join(json.dumps(spec) for spec in facts["specs"])
            lines.append(f'{json.dumps(repo)}: {head}, "specs": [\n  {specs}]}}{comma}')
        else:
            lines.append(f"{json.dumps(repo)}: {json.dumps(facts)}{comma}")
    return "\n".join([*lines, "}}", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="launch/make_profiles.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(arguments)
    for package, wanted in VERSIONS.items():
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found != wanted:
            print(f"{package} {wanted} is needed, found: {found}; install the extra `data`", file=sys.stderr)
            return UNUSABLE_MACHINE
    different = False
    for name, make in (("swebench", swebench_profiles), ("swesmith", swesmith_profiles)):
        path, text = PROFILES_DIR / f"{name}.json", render(make())
        if path.exists() and path.read_text("utf-8") == text:
            print(f"{path.name}: unchanged")
            continue
        different = True
        if options.check:
            print(f"{path.name}: differs from what {name} {VERSIONS[name]} says", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"{path.name}: written, {len(text)} bytes")
    return FAILED if different and options.check else OK


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
