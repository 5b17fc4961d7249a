"""A rich console for standard output that leaves a closed pipe to `launch.entry`, as print does.

rich's own would end the process with status 1, as if the command had failed.
"""

from typing import override

from rich.console import Console


class OutConsole(Console):
    """Console of a command's results."""

    @override
    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the BrokenPipeError, which goes on its way."""
        raise  # noqa: PLE0704
