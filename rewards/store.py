"""Verdicts on disk, by (task, patch, grader): graded once, whatever run or process asks.

One small file a verdict, written beside and linked to its place, so many processes may share a folder. Two
that grade the same at once both grade, and both go on with the verdict of the first: no lock is held for
minutes, and what is kept never changes. A file is believed only if it holds its own key and the digest of
its content; anything else is told in the log and graded again.
Verdicts that a faster or larger machine could change are not kept. Errors are no verdicts and never get here.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import os
import secrets
from importlib import resources
from pathlib import Path
from typing import Any, cast

from rewards.types import RewardResult, TestSpec

logger = logging.getLogger(__name__)
_FORMAT = 1


@functools.cache
def grader_digest() -> str:
    """Of the source of this package: a changed grader has no old verdicts."""
    digest = hashlib.sha256()
    root = Path(str(resources.files("rewards")))
    for path in sorted(root.rglob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def task_digest(tests: TestSpec, environment: str) -> str:
    """Of everything about a task that a verdict depends on; `environment` is its layers' digest."""
    facts = json.dumps([dataclasses.asdict(tests), environment], sort_keys=True)
    return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()


class VerdictStore:
    """A folder of verdicts. Blocking, in the order of 0.1 ms a call on a local disk."""

    def __init__(self, folder: Path, *, grader: str | None = None) -> None:
        """`grader` is the digest of the grader; by default that of this package."""
        self._folder = folder
        self._grader = grader or grader_digest()

    def load(self, task: str, patch: str) -> RewardResult | None:
        """The kept verdict, or None."""
        key = self._key(task, patch)
        path = self._path(key)
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("verdict %s cannot be read and is ignored: %s", path, error)
            return None
        try:
            return _decode(text, key)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("verdict %s is damaged and is ignored: %s", path, error)
            return None

    def save(self, task: str, patch: str, result: RewardResult) -> RewardResult:
        """Keep a verdict, unless another machine could judge otherwise, and return the one that is kept: that
        of another process where it was first. A full disk is told, no more."""
        if not lasting(result):
            return result
        key = self._key(task, patch)
        path = self._path(key)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(_encode(result, key), "utf-8")
            return self._place(draft, path, task, patch) or result
        except OSError as error:
            logger.warning("verdict %s cannot be kept: %s", path, error)
        finally:
            draft.unlink(missing_ok=True)
        return result

    def _place(self, draft: Path, path: Path, task: str, patch: str) -> RewardResult | None:
        """Puts the draft in its place; the verdict that was there before, if it can be believed."""
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            earlier = self.load(task, patch)
            if earlier is not None:
                return earlier
            draft.replace(path)
        except OSError:  # a filesystem without links
            draft.replace(path)
        return None

    def _key(self, task: str, patch: str) -> str:
        parts = (self._grader, task, hashlib.sha256(patch.encode("utf-8", "surrogateescape")).hexdigest())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def lasting(result: RewardResult) -> bool:
    """Whether the verdict says something of the patch alone, not of how fast or large the machine was."""
    return result.exhausted is None and "time limit" not in result.reasons


def _encode(result: RewardResult, key: str) -> str:
    verdict = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    body = json.dumps([_FORMAT, key, verdict], sort_keys=True, default=dict)
    return json.dumps({"body": body, "sha256": hashlib.sha256(body.encode()).hexdigest()})


def _decode(text: str, key: str) -> RewardResult:
    outer = cast(dict[str, Any], json.loads(text))
    body = str(outer["body"])
    if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
        raise ValueError("its digest is wrong")
    version, found, verdict = cast(tuple[Any, Any, dict[str, Any]], json.loads(body))
    if version != _FORMAT or found != key:
        raise ValueError("it belongs to something else")
    fields: dict[str, Any] = {
        name: tuple(cast(list[Any], value)) if isinstance(value, list) else value
        for name, value in verdict.items()
    }
    return RewardResult(**fields)
