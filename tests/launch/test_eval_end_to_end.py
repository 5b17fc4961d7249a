"""The real command on real tasks, in sandboxes and in containers; the policy is played by a server with the
endpoint of vLLM. The figures must be the same whatever the sandboxes are."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest

from launch.eval import main
from recipes.swe.chat import ChatCodec
from recipes.swe.parsing import format_call
from recipes.swe.tasks import gold_edits, load_rows
from sandbox.cache import EnvCache
from tests.launch.runner import ROOT

CACHE = ROOT / ".cache"
TASKS = CACHE / "tasks" / "local.jsonl"
POLICY = CACHE / "policy" / "cpu_tiny"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (TASKS.exists() and POLICY.exists()), reason="needs prepare.py and make_policy.py to have run"
    ),
]
SOLVED, WRONG, MALFORMED, DEAD = 0, 1, 2, 3
"""What happens to each of the four tasks."""


@contextmanager
def scripted_server(scripts: dict[str, list[str] | None]) -> Iterator[str]:
    """Answers the n-th turn of a task with the n-th text of its script; without one with status 500."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    codec = ChatCodec(tokenizer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = tokenizer.decode(body["token_ids"])
            turn = prompt.count("<|im_start|>assistant") - 1
            script = next(texts for statement, texts in scripts.items() if statement in prompt)
            ids = codec.encode_response(script[turn]) if script else ()
            content = [{"logprob": -0.25}] * len(ids)
            choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
            self.send_response(200 if ids else 500)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [choice]}).encode())

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_evaluation_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandboxes: list[str]
):
    rows = [row for row in load_rows(TASKS) if len(gold_edits(row, EnvCache(CACHE))) == 1][:4]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("\n".join(row.to_json() for row in rows))
    submit = format_call("submit", {})
    ((path, old, new),) = gold_edits(rows[SOLVED], EnvCache(CACHE))
    fix = {"command": "str_replace", "path": f"/testbed/{path}", "old_str": old, "new_str": new}
    statements = [row.problem_statement.strip().splitlines()[0] for row in rows]
    assert len(set(statements)) == 4
    scripts: dict[str, list[str] | None] = {
        statements[SOLVED]: [format_call("str_replace_editor", fix), submit],
        statements[WRONG]: [format_call("bash", {"command": "echo '#' >> /testbed/setup.py"}), submit],
        statements[MALFORMED]: ["I think it is fine.", "Really."],
        statements[DEAD]: None,
    }
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with scripted_server(scripts) as url:
        status = main([
            "policy=cpu_tiny", "agent=demo", f"data.path={tasks}", f"serve.url={url}",
            f"paths.runs_dir={tmp_path / 'runs'}", "sandbox.max_concurrent=2", "sandbox.memory_mib=512",
            "sandbox.disk_mib=256", "reward.timeout_s=60", "reward.store=false", *sandboxes,
        ])  # fmt: skip
    assert status == 0
    run_dir = tmp_path / "runs" / "eval-cpu_tiny"
    found = json.loads((run_dir / "eval.json").read_text())
    assert (found["tasks"], found["tasks_judged"], found["solved_tasks"]) == (4, 3, 1)
    assert found["pass_at_1"] == pytest.approx(1 / 3) and found["failures"] == {"provider": 1}
    assert found["pass_at_1_failures_unsolved"] == 0.25
    assert found["ends"] == {"submitted": 2, "format": 1}
    assert "pass@1     0.333   95% interval [0.061, 0.792] (wilson)" in (run_dir / "eval.txt").read_text()
    frame = pl.read_parquet(run_dir / "rollouts.parquet")
    row = frame.filter(pl.col("instance_id") == rows[SOLVED].instance_id).to_dicts()[0]
    assert row["resolved"] and row["calls_str_replace_editor"] == 1 and row["cache_hit"] is True
    assert row["memory_peak_bytes"] > 0 and row["sandbox_cpu_s"] > 0 and row["grade_s"] > 0
    assert json.loads((run_dir / "owner.json").read_text())["state"] == "finished"
