"""Makes the demo policy: tasks -> demonstrations -> tokenizer -> supervised training -> published folder.

The folder is published whole or not at all, with `policy.json` beside the weights: the digest of all that it
was made from (a second call with the same inputs returns at once) and how good it is. No weights are
downloaded. It shows nothing itself; a `Progress` is told what is going on.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from recipes.cpu.policy.demonstrations import demonstrate, texts
from recipes.cpu.policy.evaluate import Report, Subject, attempt_all, describe, subjects, summarise
from recipes.cpu.policy.model import build_model, export
from recipes.cpu.policy.sampler import TorchPolicy, load
from recipes.cpu.policy.sft import encode, train
from recipes.cpu.policy.tokenizer import train_tokenizer, verify
from recipes.cpu.policy.types import Demonstration, DemonstrationSettings, ModelSettings, SftSettings
from recipes.swe.agent import AgentConfig
from recipes.swe.chat import ChatCodec
from recipes.swe.tasks import LOCAL_TASKS, load_rows
from sandbox.cache import EnvCache
from sandbox.types import Backend

POLICY_NAME = "cpu_tiny"
CARD = "policy.json"
"""What a finished folder was made from and how good it is."""
_AGENT_SOURCES = ("agent", "chat", "editor", "parsing", "prompts", "tools")


class Progress(Protocol):
    """Told what is going on."""

    def stage(self, text: str, total: int) -> None:
        """A new stage of `total` steps begins."""
        ...

    def advance(self, detail: str = "") -> None:
        """One step of the stage is done."""
        ...


@dataclass(frozen=True, slots=True)
class MakeSettings:
    """All that shapes the policy beside the tasks."""

    seed: int = 0
    """Of the demonstrations' choices, the weights and the batches."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """Its network."""
    sft: SftSettings = field(default_factory=SftSettings)
    """Its training."""
    demonstrations: DemonstrationSettings = field(default_factory=DemonstrationSettings)
    """What it is trained on."""
    judged_samples: int = 4
    """Attempts a task in the closing evaluation."""


@dataclass(frozen=True, slots=True)
class Made:
    """The outcome."""

    folder: Path
    """Where the policy is."""
    fresh: bool
    """False when it had been made before from the same inputs."""
    summary: str
    """How good it is, in one line."""
    resolve_rate: float
    """Before RL, in pretend sandboxes."""


def policy_folder(cache_dir: Path) -> Path:
    """Where the policy is published."""
    return cache_dir / "policy" / POLICY_NAME


def inputs_digest(tasks: Path, agent: Path, settings: MakeSettings) -> str:
    """Digest of the tasks, the agent's configuration and code, our code and the settings."""
    here = Path(__file__).resolve().parent
    swe = here.parent.parent / "swe"
    sources = [*sorted(here.glob("*.py")), *(swe / f"{name}.py" for name in _AGENT_SOURCES)]
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for path in (tasks, agent, *sources):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def finished(folder: Path, digest: str) -> Made | None:
    """The policy in `folder` when it was made from these inputs."""
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if card.get("inputs") != digest or not (folder / "model.safetensors").is_file():
        return None
    return Made(folder, fresh=False, summary=str(card["summary"]), resolve_rate=float(card["resolve_rate"]))


async def make_policy(
    cache_dir: Path, agent: Path, settings: MakeSettings, *, backend: Backend, progress: Progress
) -> Made:
    """Make and publish the policy. Raises CacheError, SandboxError, TaskFileError, DemonstrationError or
    TokenizerMismatchError."""
    started = time.monotonic()
    tasks, folder = cache_dir / LOCAL_TASKS, policy_folder(cache_dir)
    digest = inputs_digest(tasks, agent, settings)
    config, cache = AgentConfig.load(agent), EnvCache(cache_dir)
    rows = load_rows(tasks)
    progress.stage("demonstrations in sandboxes", len(rows))
    shown = await demonstrate(
        rows,
        settings.demonstrations,
        backend=backend,
        cache=cache,
        config=config,
        seed=settings.seed,
        on_task=progress.advance,
    )
    demonstrated_s = time.monotonic() - started
    work = _work_folder(folder)
    try:
        loss = _train_and_export(shown, settings, work, progress)
        trained_s = time.monotonic() - started
        report = await _judge(work, subjects(tasks, cache), config, settings, progress)
        card = _card(digest, settings, shown, loss, report)
        card["seconds"] = {"demonstrations": demonstrated_s, "training": trained_s - demonstrated_s}
        (work / CARD).write_text(json.dumps(card, indent=1), "utf-8")
        _publish(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Made(folder, fresh=True, summary=describe(report), resolve_rate=report.resolve_rate)


def _train_and_export(
    shown: Sequence[Demonstration], settings: MakeSettings, work: Path, progress: Progress
) -> float:
    """Train tokenizer and model, write them to `work`; returns the mean loss of the last 20 steps."""
    spoken = texts(shown)
    tokenizer = train_tokenizer(spoken, vocab_size=settings.model.vocab_size)
    codec = ChatCodec(tokenizer)
    rows = [encode(one, codec) for one in shown]
    model = build_model(settings.model, tokenizer, seed=settings.seed)
    progress.stage("supervised training", settings.sft.steps)
    losses = train(
        model,
        rows,
        settings.sft,
        pad=tokenizer.pad_token_id,
        seed=settings.seed,
        on_step=lambda step, loss: progress.advance(f"loss {loss:.3f}"),
    )
    export(model, tokenizer, work)
    verify(work, tokenizer, spoken)
    _verify_rows(work, shown, rows)
    return sum(losses[-20:]) / len(losses[-20:])


def _verify_rows(work: Path, shown: Sequence[Demonstration], rows: Iterable[Any]) -> None:
    from transformers import AutoTokenizer

    from recipes.cpu.policy.tokenizer import TokenizerMismatchError

    codec = ChatCodec(AutoTokenizer.from_pretrained(work))
    for one, row in zip(shown, rows, strict=True):
        if encode(one, codec) != row:
            raise TokenizerMismatchError(f"{work}: the loaded tokenizer gives other ids on {one.instance_id}")


async def _judge(
    work: Path, on: Sequence[Subject], config: AgentConfig, settings: MakeSettings, progress: Progress
) -> Report:
    import torch

    progress.stage("evaluation", 1)
    torch.manual_seed(settings.seed)
    model, tokenizer = load(work)
    codec = ChatCodec(tokenizer)
    policy = TorchPolicy(model, pad=tokenizer.pad_token_id, end=codec.end_id)
    report = summarise(await attempt_all(policy, codec, on, config, samples=settings.judged_samples))
    progress.advance()
    return report


def _card(
    digest: str, settings: MakeSettings, shown: Sequence[Demonstration], loss: float, report: Report
) -> dict[str, Any]:
    return {
        "inputs": digest,
        "settings": asdict(settings),
        "demonstrations": len(shown),
        "right_share": sum(one.right for one in shown) / len(shown),
        "final_loss": loss,
        "resolve_rate": report.resolve_rate,
        "summary": describe(report),
        "report": {**asdict(report), "per_task": dict(report.per_task)},
    }


def _work_folder(folder: Path) -> Path:
    """An empty folder beside the target, on the same file system; leftovers of killed makers go."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = folder.parent / f".{folder.name}.{os.getpid()}"
    work.mkdir()
    return work


def _publish(work: Path, folder: Path) -> None:
    """Put `work` in the place of `folder`."""
    old = folder.parent / f".{folder.name}.old"
    if folder.exists():
        folder.rename(old)
    work.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
