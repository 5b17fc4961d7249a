"""Access to the policy: token ids in, token ids and logprobs out.

`VllmPolicy` speaks vLLM's `/inference/v1/generate`, the endpoint that SkyRL's own client uses, so what is
trained on is exactly what the server sampled. Every fault is a ProviderError; only a connection that was
refused or dropped is tried again, since a server may restart or pause for a weight sync. `ScriptedPolicy`
plays given texts: for tests and for making demonstrations. Neither builds prompts.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, wait_exponential

from recipes.swe.chat import ChatCodec
from recipes.swe.failures import ProviderError, one_line
from recipes.swe.types import Completion, Policy

GENERATE_PATH = "/inference/v1/generate"
SESSION_HEADER = "X-Session-ID"
"""Requests with the same value go to the same engine (consistent_hash of vllm-router, SkyRL's choice): the
engine that has the rollout's earlier turns in its prefix cache."""


@runtime_checkable
class Routed(Protocol):
    """A policy that serves the calls of one rollout better when it knows that they belong together."""

    def for_rollout(self, rollout_id: str) -> Policy:
        """The same policy for the calls of one rollout."""
        ...


def for_rollout(policy: Policy, rollout_id: str) -> Policy:
    """`policy` for the calls of one rollout."""
    return policy.for_rollout(rollout_id) if isinstance(policy, Routed) else policy


class VllmPolicy:
    """Client of one server or router. Use from one event loop; `close` when done."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        timeout_s: float = 600.0,
        stop_token_ids: Sequence[int] = (),
        reconnect_s: float = 30.0,
    ) -> None:
        """`timeout_s` bounds one call, queueing included; `reconnect_s` how long to try a server that
        refuses connections; `stop_token_ids` end a turn beside the model's own (pass the codec's)."""
        self._url = base_url.rstrip("/") + GENERATE_PATH
        self._model = model
        self._timeout_s = timeout_s
        self._stop_token_ids = list(stop_token_ids)
        self._reconnect_s = reconnect_s
        self._http: Any = None

    def for_rollout(self, rollout_id: str) -> Policy:
        """The same server; a router sends all calls of the rollout to one engine."""
        return _RolloutPolicy(self, rollout_id)

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        """Sample one response. Raises ProviderError."""
        return await self.sample_in(
            None, prompt_ids, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
        )

    async def sample_in(
        self,
        session: str | None,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        """Sample one response of a session (see SESSION_HEADER). Raises ProviderError."""
        sampling: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "logprobs": 1,
        }
        if seed is not None:
            sampling["seed"] = seed
        if self._stop_token_ids:
            sampling["stop_token_ids"] = self._stop_token_ids
        payload = {"model": self._model, "token_ids": list(prompt_ids), "sampling_params": sampling}
        try:
            async with asyncio.timeout(self._timeout_s):
                return _completion(await self._post(payload, session))
        except TimeoutError as error:
            raise ProviderError(f"no answer from {self._url} in {self._timeout_s:g} s") from error

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _post(self, payload: dict[str, Any], session: str | None) -> Any:
        import aiohttp

        http = self._session()
        headers = {SESSION_HEADER: session} if session else {}
        attempts = AsyncRetrying(
            retry=retry_if_exception_type((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)),
            wait=wait_exponential(multiplier=0.1, max=2.0),
            stop=_Outage(self._reconnect_s),
        )
        try:
            async for attempt in attempts:
                with attempt:
                    async with http.post(self._url, json=payload, headers=headers) as answer:
                        if answer.status != 200:
                            body = " ".join((await answer.text()).split())[:300]
                            raise ProviderError(f"{self._url} answered {answer.status}: {body}")
                        return await answer.json()
        except RetryError as error:
            cause = error.last_attempt.exception() or error
            raise ProviderError(f"{self._url} is not reachable: {one_line(cause)}") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise ProviderError(f"{self._url}: {one_line(error)}") from error
        raise AssertionError("tenacity always returns or raises")

    def _session(self) -> Any:
        if self._http is None:
            import aiohttp

            # uvicorn drops idle connections after 5 s: let go of them before it does.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
            self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        return self._http


class _RolloutPolicy:
    """A view of a `VllmPolicy` for one rollout."""

    def __init__(self, policy: VllmPolicy, rollout_id: str) -> None:
        self._policy = policy
        self._rollout_id = rollout_id

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        """As VllmPolicy.sample."""
        return await self._policy.sample_in(
            self._rollout_id,
            prompt_ids,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
        )


class _Outage:
    """Stops tenacity when a server has been out of reach for so long, however long the call took before."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None

    def __call__(self, state: RetryCallState) -> bool:
        now = state.outcome_timestamp or 0.0
        self._since = now if self._since is None else self._since
        return now - self._since >= self._limit_s


class ScriptedPolicy:
    """Plays texts in order, as if they had been sampled with certainty. One per rollout."""

    def __init__(self, codec: ChatCodec, texts: Iterable[str]) -> None:
        self._codec = codec
        self._texts = iter(texts)

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        """The next text; ProviderError after the last one."""
        del prompt_ids, temperature, top_p, seed
        text = next(self._texts, None)
        if text is None:
            raise ProviderError("the script has no more responses")
        ids = self._codec.encode_response(text)
        kept = ids[:max_tokens]
        return Completion(kept, (0.0,) * len(kept), "stop" if len(kept) == len(ids) else "length")


def _completion(answer: Any) -> Completion:
    """Read vLLM's answer; anything short of ids with one logprob each is refused."""
    try:
        choice = answer["choices"][0]
        token_ids = tuple(int(token) for token in choice["token_ids"])
        logprobs = tuple(float(entry["logprob"]) for entry in choice["logprobs"]["content"])
        reason = cast(str, choice["finish_reason"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ProviderError(f"the server's answer lacks ids or logprobs: {one_line(error)}") from error
    if not token_ids or len(token_ids) != len(logprobs):
        raise ProviderError(f"the server sent {len(token_ids)} ids with {len(logprobs)} logprobs")
    if reason not in ("stop", "length"):
        raise ProviderError(f"the server ended the call with {reason!r}")
    return Completion(token_ids, logprobs, "stop" if reason == "stop" else "length")
