"""Environments of the local projects: their sdists used in place, over one venv of pinned wheels.

Says what `build_env` is to build; builds nothing itself.
"""

import sys
from pathlib import Path

from recipes.swe.build_env import BuiltEnv, EnvBuilder
from recipes.swe.build_types import BuildSettings
from recipes.swe.dataset_types import BuildSpec, RepoSource
from recipes.swe.tasks_projects import Project
from sandbox.types import Backend


def build_spec(project: Project) -> BuildSpec:
    """How a local project is built: all its requirements are exact, and it is installed by a `.pth` file."""
    return BuildSpec(
        source=RepoSource("sdist", f"{project.name}=={project.version}", project.sdist.sha256),
        python=".".join(map(str, sys.version_info[:3])),
        packages=project.requirements,
        python_path=project.python_path,
    )


class ProjectBuilder:
    """Builds local projects with the interpreter that runs this process."""

    def __init__(self, settings: BuildSettings, backend: Backend) -> None:
        """See `build_env.EnvBuilder`."""
        self.envs = EnvBuilder(settings, backend, pythons=[Path(sys.base_prefix)])

    async def env(self, project: Project) -> BuiltEnv:
        """Layers of a project; built when missing. Raises BuildError, FetchError, SandboxError."""
        return await self.envs.build(build_spec(project), files=project.wheels)
