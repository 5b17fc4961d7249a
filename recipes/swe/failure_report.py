"""What is left behind when a run stops because too many rollouts failed: counts by class, and messages.

The report is made of the step's `GeneratorOutput`, so it holds whichever trainer stopped. It decides
nothing; `recipes.swe.advantages` does.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.swe.output import FAILED, MESSAGES, QUARANTINED

MESSAGES_SHOWN = 5
"""Different messages of each class in the report."""


class TooManyFailuresError(RuntimeError):
    """Too large a share of a step's rollouts failed for reasons of ours."""


def write_failure_report(output: Mapping[str, Any], *, step: int, run_dir: Path | None) -> str:
    """Write `failures_step_NNNN.txt` to the run's folder; returns one line with counts and its path."""
    counts, messages = _by_class(output)
    summary = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
    if run_dir is None:
        return summary
    lines = [f"step {step}: failed rollouts by class (docs/failures.md says what each means)", ""]
    for kind, count in counts.most_common():
        lines.append(f"{kind}: {count}")
        lines += [f"    {times} x {message}" for message, times in messages[kind].most_common(MESSAGES_SHOWN)]
        others = len(messages[kind]) - MESSAGES_SHOWN
        lines += [f"    and {others} other messages"] if others > 0 else []
    path = run_dir / f"failures_step_{step:04d}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:  # a full disk may be why the rollouts failed: the summary must still be told
        return f"{summary}; no report: {error}"
    return f"{summary}; see {path}"


def _by_class(output: Mapping[str, Any]) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Rollouts of each class, and how often each of its messages occurs. A left-out rollout is one row."""
    counts = Counter[str]()
    messages: dict[str, Counter[str]] = defaultdict(Counter)
    reasons = output["stop_reasons"] or []
    texts = output.get(MESSAGES) or [""] * len(reasons)
    for reason, text in zip(reasons, texts, strict=True):
        if reason == QUARANTINED or reason.startswith(FAILED):
            kind = reason.removeprefix(FAILED)
            counts[kind] += 1
            messages[kind][text or "(no message)"] += 1
    return counts, messages
