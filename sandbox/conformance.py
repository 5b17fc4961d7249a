"""What every backend must do: small checks over the `Backend` protocol, run by the tests and the doctor.

Each check takes an entered backend, opens its own sandboxes and raises `ConformanceError` with what was
wrong. The checks are in the modules `sandbox.conformance_*`. A backend that offers less says so in its
attribute `lacks`; checks that need it are then reported as not run, never as passed.
"""

import asyncio
from collections.abc import AsyncGenerator, Container
from dataclasses import dataclass

from sandbox import (
    conformance_control,
    conformance_copies,
    conformance_exec,
    conformance_files,
    conformance_session,
    conformance_tamper,
    conformance_walls,
)
from sandbox.conformance_base import Check, ConformanceError, Need
from sandbox.types import Backend

__all__ = ["CHECKS", "Check", "ConformanceError", "Need", "Outcome", "outcomes", "run_all", "run_one"]

_CHECK_TIMEOUT_S = 120

CHECKS: tuple[Check, ...] = (
    conformance_exec.exec_reports_exactly,
    conformance_exec.exec_times_out,
    conformance_exec.output_is_capped,
    conformance_session.session_keeps_state,
    conformance_session.session_takes_any_command,
    conformance_session.session_survives_timeout,
    conformance_session.session_ignores_late_output,
    conformance_session.cancelled_run_is_over,
    conformance_tamper.spoiled_shells_are_replaced,
    conformance_tamper.skipped_commands_never_succeed,
    conformance_tamper.spoiled_shells_that_hang_time_out,
    conformance_tamper.reports_cannot_be_forged_blindly,
    conformance_tamper.tampering_keeps_state_where_possible,
    conformance_control.interrupt_ends_the_command_only,
    conformance_control.interrupt_is_repeated,
    conformance_control.jobs_are_listed,
    conformance_control.output_goes_to_a_file,
    conformance_control.many_sessions_at_once,
    conformance_control.a_prepared_session_is_a_session,
    conformance_control.what_broke_other_sessions,
    conformance_files.files_are_regular_and_inside,
    conformance_copies.trees_go_in_and_come_back,
    conformance_copies.hostile_trees_come_out_harmless,
    conformance_copies.races_lead_nowhere,
    conformance_files.diff_is_a_git_patch,
    conformance_files.layers_are_shared_unchanged,
    conformance_walls.limits_hold,
    conformance_walls.isolation_basics,
    conformance_walls.first_process_is_hidden,
    conformance_walls.loopback_works,
    conformance_walls.close_is_idempotent,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one check."""

    name: str
    """Name of the check."""
    problem: str
    """'' when the backend did as promised, else what was wrong."""
    lacking: tuple[Need, ...] = ()
    """Not empty: the check was not run, since the backend says that it cannot do this."""

    @property
    def passed(self) -> bool:
        """It ran, and nothing was wrong."""
        return not self.problem and not self.lacking

    def __str__(self) -> str:
        if self.lacking:
            return f"{self.name}: not in this mode (needs {', '.join(self.lacking)})"
        return f"{self.name}: {self.problem or 'as promised'}"


async def run_all(backend: Backend) -> tuple[Outcome, ...]:
    """Every check in turn, whatever the others did."""
    return tuple([outcome async for outcome in outcomes(backend)])


async def outcomes(backend: Backend, names: Container[str] = ()) -> AsyncGenerator[Outcome]:
    """`run_all`, or only the checks of these names if any, one by one as they come."""
    for check in CHECKS:
        if not names or check.name in names:
            yield await run_one(check, backend)


async def run_one(check: Check, backend: Backend) -> Outcome:
    """One check, unless the backend says that it lacks what that needs."""
    lacking = check.lacking(backend)
    if lacking:
        return Outcome(check.name, "", lacking)
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            await check(backend)
    except Exception as error:  # noqa: BLE001 - any failure of a check is its result
        return Outcome(check.name, f"{type(error).__name__}: {error}")
    return Outcome(check.name, "")
