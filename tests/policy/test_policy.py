"""The demo policy's parts on tasks made up here: no prepared tasks, no server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipes.cpu.policy.demonstrations import messages, texts
from recipes.cpu.policy.evaluate import Subject, attempt_all, summarise
from recipes.cpu.policy.make import MakeSettings, finished, inputs_digest
from recipes.cpu.policy.model import build_model, export
from recipes.cpu.policy.plans import Edit, TaskSource, right_edits, scripts, view_range, wrong_edits
from recipes.cpu.policy.sampler import TorchPolicy, load, sample_batch
from recipes.cpu.policy.sft import batch_loss, distinct, encode, entropy_floor, learning_rate, train
from recipes.cpu.policy.simulate import SimulatedSandbox
from recipes.cpu.policy.tokenizer import TokenizerMismatchError, byte_tokenizer, train_tokenizer, verify
from recipes.cpu.policy.types import (
    Demonstration,
    DemonstrationSettings,
    DemoTurn,
    ModelSettings,
    SftSettings,
)
from recipes.cpu.policy.wording import responses
from recipes.swe.agent import AgentConfig, run_agent
from recipes.swe.chat import ChatCodec
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.types import TaskInstance
from rewards.types import TestSpec
from sandbox.types import EnvSpec

ROOT = Path(__file__).resolve().parents[2]
PATH = "/testbed/shop.py"
FIXED = '''"""A shop."""


class Shop:
    def price(self, item, count=1):
        if count > 1 and item is not None:
            total = item * count
            return total
        return item

    def empty(self):
        return len(self.items) == 0


def other(item, count=1):
    if count > 1 and item is None:
        return 0
    self.items = None
    return item
'''
BUGS = {
    "operator": ("            total = item * count\n", "            total = item + count\n"),
    "removed": ("            total = item * count\n", ""),
    "added": ("        return item\n\n", "        item = None\n        return item\n\n"),
    "ambiguous": ("        return len(self.items) == 0\n", "        return item\n"),
}
SMALL = ModelSettings(vocab_size=600, hidden_size=64, intermediate_size=64, layers=1, heads=1)


def source(name: str) -> TaskSource:
    right, wrong = BUGS[name]
    assert FIXED.count(right) == 1
    return TaskSource(f"shop.{name}", PATH, FIXED.replace(right, wrong), FIXED)


def task(name: str) -> TaskInstance:
    tests = TestSpec(("python", "-m", "pytest"), ("t.py::a",), ())
    return TaskInstance(f"shop.{name}", "shop", f"{name}: the shop is wrong", EnvSpec(f"shop.{name}"), tests)


@pytest.fixture(scope="module")
def config() -> AgentConfig:
    return replace(
        AgentConfig.load(ROOT / "configs/agent/demo.yaml"), max_context_tokens=30000, max_response_tokens=9000
    )


async def demonstrations(config: AgentConfig, count: int = 10) -> list[Demonstration]:
    """Through the real agent loop, over pretend sandboxes."""
    codec = ChatCodec(byte_tokenizer())
    made: list[Demonstration] = []
    for name in BUGS:
        for script in scripts(source(name), count, DemonstrationSettings(), seed=0):
            sandbox = SimulatedSandbox({PATH: source(name).buggy})
            policy = ScriptedPolicy(codec, responses(script, seed=0))
            trajectory = await run_agent(sandbox, policy, codec, task(name), config)
            assert trajectory.end == "submitted"
            assert (sandbox.files[PATH].decode() == FIXED) == script.right
            assert sandbox.files[PATH].decode() != source(name).buggy
            turns = tuple(DemoTurn(turn.response, turn.observation) for turn in trajectory.turns)
            made.append(
                Demonstration(task(name).instance_id, *messages(task(name), config), turns, script.right)
            )
    return made


@pytest.mark.parametrize("name", BUGS)
def test_right_edits_turn_the_buggy_file_into_the_fixed_one(name: str) -> None:
    text = source(name).buggy
    for edit in right_edits(source(name)):
        assert text.count(edit.old) == 1
        text = text.replace(edit.old, edit.new, 1)
    assert text == FIXED


@pytest.mark.parametrize("name", BUGS)
def test_wrong_edits_differ_from_the_fix_and_from_each_other(name: str) -> None:
    one = source(name)
    results = {one.buggy.replace(edit.old, edit.new, 1) for edit in wrong_edits(one, 4, seed=0)}
    assert len(results) >= 2
    assert not results & {one.buggy, one.fixed}
    assert all(one.buggy.count(edit.old) == 1 for edit in wrong_edits(one, 4, seed=0))


def test_one_line_fixes_need_one_line() -> None:
    assert right_edits(source("operator")) == (Edit("total = item + count", "total = item * count"),)
    first, last = view_range(source("operator"))
    assert first <= 7 <= last


def test_mix_has_its_share_of_right_and_careful_scripts() -> None:
    made = scripts(source("operator"), 40, DemonstrationSettings(), seed=1)
    rights = sum(script.right for script in made)
    assert 40 * 0.2 <= rights <= 40 * 0.55
    careful = [script for script in made if script.view is not None]
    assert len(careful) == 20
    assert sum(script.right for script in careful) > rights / 2
    assert made == scripts(source("operator"), 40, DemonstrationSettings(), seed=1)


async def test_every_message_reads_the_same_after_export(config: AgentConfig, tmp_path: Path) -> None:
    shown = await demonstrations(config)
    tokenizer = train_tokenizer(texts(shown), vocab_size=SMALL.vocab_size)
    model = build_model(SMALL, tokenizer, seed=0)
    export(model, tokenizer, tmp_path)
    assert verify(tmp_path, tokenizer, texts(shown)) == len(texts(shown))
    again, loaded = load(tmp_path)
    assert again.config.architectures == ["Qwen2ForCausalLM"]
    assert again.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()
    trained, served = ChatCodec(tokenizer), ChatCodec(loaded)
    assert all(encode(one, trained) == encode(one, served) for one in shown)
    with pytest.raises(TokenizerMismatchError):
        verify(tmp_path, byte_tokenizer(), texts(shown))


async def test_only_the_assistants_tokens_are_trained_on(config: AgentConfig) -> None:
    tokenizer = byte_tokenizer()
    codec = ChatCodec(tokenizer)
    for one in (await demonstrations(config, 4))[:3]:
        row = encode(one, codec)
        assert len(row.ids) == len(row.mask)
        trained = tokenizer.decode([i for i, kept in zip(row.ids, row.mask, strict=True) if kept])
        assert trained == "".join(f"{turn.response}<|im_end|>" for turn in one.turns)
        whole = [{"role": "system", "content": one.system}, {"role": "user", "content": one.user}]
        for turn in one.turns:
            whole.append({"role": "assistant", "content": turn.response})
            whole.append({"role": "user", "content": turn.observation})
        text = tokenizer.apply_chat_template(whole[:-1], tokenize=False)
        assert tokenizer.decode(list(row.ids)) + "\n" == text


async def test_loss_falls_and_padding_changes_nothing(config: AgentConfig) -> None:
    shown = await demonstrations(config, 6)
    tokenizer = train_tokenizer(texts(shown), vocab_size=SMALL.vocab_size)
    rows = distinct([encode(one, ChatCodec(tokenizer)) for one in shown])
    model = build_model(SMALL, tokenizer, seed=0)
    pad = tokenizer.pad_token_id
    short, long = min(rows, key=lambda r: len(r.ids)), max(rows, key=lambda r: len(r.ids))
    together = float(batch_loss(model, [short, long], pad))
    parts = [(float(batch_loss(model, [r], pad)), r.weight * sum(r.mask)) for r in (short, long)]
    assert together == pytest.approx(sum(a * b for a, b in parts) / sum(b for _, b in parts), abs=1e-4)
    settings = SftSettings(steps=25, batch_size=4, warmup_steps=5)
    losses = train(model, rows, settings, pad=pad, seed=0)
    assert losses[-1] < 0.6 * losses[0]
    assert losses[-1] > entropy_floor(rows)
    twin = build_model(SMALL, tokenizer, seed=0)
    assert train(twin, rows, replace(settings, steps=3), pad=pad, seed=0) == pytest.approx(
        losses[:3], rel=0.2
    )


def test_learning_rate_warms_up_and_comes_down() -> None:
    settings = SftSettings(steps=100, warmup_steps=10, lr=1.0)
    rates = [learning_rate(step, settings) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] < 0.06


async def test_sampling_and_judging_an_untrained_policy(config: AgentConfig) -> None:
    tokenizer = byte_tokenizer()
    model: Any = build_model(SMALL, tokenizer, seed=0)
    codec = ChatCodec(tokenizer)
    prompts = [codec.initial("a", "b"), codec.initial("a", "longer than that")]
    drawn = sample_batch(
        model, prompts, max_tokens=5, temperature=1.0, pad=tokenizer.pad_token_id, end=codec.end_id
    )
    assert [1 <= len(one.token_ids) <= 5 for one in drawn] == [True, True]
    assert all(len(one.token_ids) == len(one.logprobs) for one in drawn)
    assert all(score <= 0 for one in drawn for score in one.logprobs)
    policy = TorchPolicy(model, pad=tokenizer.pad_token_id, end=codec.end_id)
    limits = replace(config, max_turns=2, max_response_tokens=8, max_context_tokens=2048)
    on = [Subject(task(name), source(name)) for name in BUGS]
    report = summarise(await attempt_all(policy, codec, on, limits, samples=2))
    assert report.attempts == 8
    assert report.resolve_rate == 0
    assert report.well_formed < 0.5


def test_digest_follows_every_input(tmp_path: Path) -> None:
    tasks, agent = tmp_path / "tasks.jsonl", tmp_path / "agent.yaml"
    tasks.write_text("a")
    agent.write_text("b")
    first = inputs_digest(tasks, agent, MakeSettings())
    assert first == inputs_digest(tasks, agent, MakeSettings())
    assert first != inputs_digest(tasks, agent, MakeSettings(seed=1))
    tasks.write_text("c")
    assert first != inputs_digest(tasks, agent, MakeSettings())
    assert finished(tmp_path, first) is None
