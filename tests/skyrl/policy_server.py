"""vLLM's endpoint in the test's process; what is sampled comes from a bandit whose weights the trainer moves.

For chosen rollouts (`tests.skyrl.real_faults`) it answers with an error, or late.
"""

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from recipes.swe.policy import SESSION_HEADER
from tests.skyrl.bandit import BanditPolicy
from tests.skyrl.chosen import injected
from tests.skyrl.real_faults import WAIT_LIMIT_S


class PolicyServer:
    """Answers while its context lasts."""

    def __init__(self, policy: BanditPolicy, shares: Mapping[str, float]) -> None:
        self._policy = policy
        self._shares = shares
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "PolicyServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one call, or do as the rollout's fault says."""
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        fault = injected(handler.headers[SESSION_HEADER] or "", self._shares)
        if fault == "late":
            time.sleep(WAIT_LIMIT_S + 0.5)
        ids, logprobs = self._sampled(body) if fault != "refused" else ((), ())
        content = [{"logprob": value} for value in logprobs]
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        data = json.dumps({"choices": [choice]}).encode()
        handler.send_response(200 if ids else 500)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _sampled(self, body: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        sampling = body["sampling_params"]
        completion = asyncio.run(
            self._policy.sample(
                tuple(body["token_ids"]),
                max_tokens=sampling["max_tokens"],
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                seed=sampling["seed"],
            )
        )
        return completion.token_ids, completion.logprobs
