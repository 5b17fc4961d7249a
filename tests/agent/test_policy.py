"""The policy client against a real HTTP server on the loopback interface."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from recipes.cpu.server import free_port
from recipes.swe.chat import ChatCodec
from recipes.swe.failures import ProviderError
from recipes.swe.policy import GENERATE_PATH, SESSION_HEADER, ScriptedPolicy, VllmPolicy, for_rollout

web = pytest.importorskip("aiohttp.web")


def answer(ids: list[int], *, logprobs: int | None = None, reason: str = "stop") -> dict[str, Any]:
    content = [{"token": "", "logprob": -0.5} for _ in range(len(ids) if logprobs is None else logprobs)]
    return {
        "choices": [{"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}]
    }


@asynccontextmanager
async def server(handle: Callable[[Any], Awaitable[Any]], port: int = 0) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post(GENERATE_PATH, handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def sample(policy: VllmPolicy, seed: int | None = 7) -> Any:
    try:
        return await policy.sample((1, 2, 3), max_tokens=5, temperature=0.7, top_p=0.9, seed=seed)
    finally:
        await policy.close()


async def test_ids_go_out_and_come_back() -> None:
    seen: list[Any] = []

    async def handle(request: Any) -> Any:
        seen.append(await request.json())
        return web.json_response(answer([4, 5], reason="length"))

    async with server(handle) as url:
        completion = await sample(VllmPolicy(url, "policy", stop_token_ids=(9,)))
    assert completion.token_ids == (4, 5)
    assert completion.logprobs == (-0.5, -0.5)
    assert completion.stop_reason == "length"
    params = {
        "max_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "logprobs": 1,
        "seed": 7,
        "stop_token_ids": [9],
    }
    assert seen == [{"model": "policy", "token_ids": [1, 2, 3], "sampling_params": params}]


async def test_a_rollouts_calls_name_their_session(codec: ChatCodec) -> None:
    seen: list[str | None] = []

    async def handle(request: Any) -> Any:
        seen.append(request.headers.get(SESSION_HEADER))
        return web.json_response(answer([4]))

    async with server(handle) as url:
        policy = VllmPolicy(url, "policy")
        for view in (for_rollout(policy, "step1/a/0"), for_rollout(policy, "step1/a/1"), policy):
            await view.sample((1,), max_tokens=5, temperature=1.0, top_p=1.0, seed=None)
        await policy.close()
    assert seen == ["step1/a/0", "step1/a/1", None]
    scripted = ScriptedPolicy(codec, [])
    assert for_rollout(scripted, "x") is scripted, "a policy without sessions is used as it is"


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (answer([4, 5], logprobs=1), "2 ids with 1 logprobs"),
        (answer([]), "0 ids"),
        (answer([4], reason="abort"), "abort"),
        ({"choices": []}, "lacks ids"),
        ({"choices": [{"token_ids": [4], "logprobs": None, "finish_reason": "stop"}]}, "lacks ids"),
    ],
)
async def test_a_bad_answer_is_refused(body: Any, hint: str) -> None:
    async def handle(request: Any) -> Any:
        return web.json_response(body)

    async with server(handle) as url:
        with pytest.raises(ProviderError, match=hint):
            await sample(VllmPolicy(url, "policy"))


async def test_an_error_status_is_not_tried_again() -> None:
    calls = 0

    async def handle(request: Any) -> Any:
        nonlocal calls
        calls += 1
        return web.Response(status=500, text="engine died")

    async with server(handle) as url:
        with pytest.raises(ProviderError, match="500: engine died"):
            await sample(VllmPolicy(url, "policy"))
    assert calls == 1


async def test_an_answer_that_is_not_json() -> None:
    async def handle(request: Any) -> Any:
        return web.Response(text="hello")

    async with server(handle) as url:
        with pytest.raises(ProviderError):
            await sample(VllmPolicy(url, "policy"))


async def test_a_silent_server_times_out() -> None:
    async def handle(request: Any) -> Any:
        await asyncio.sleep(1)

    async with server(handle) as url:
        with pytest.raises(ProviderError, match=r"in 0\.2 s"):
            await sample(VllmPolicy(url, "policy", timeout_s=0.2))


async def test_a_refused_connection_is_tried_again() -> None:
    async def handle(request: Any) -> Any:
        return web.json_response(answer([4]))

    port = free_port()
    waiting = asyncio.create_task(sample(VllmPolicy(f"http://127.0.0.1:{port}", "policy")))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    async with server(handle, port):
        assert (await waiting).token_ids == (4,)


async def test_a_server_that_stays_away_is_a_provider_error() -> None:
    with pytest.raises(ProviderError, match="not reachable"):
        await sample(VllmPolicy(f"http://127.0.0.1:{free_port()}", "policy", reconnect_s=0.3))


async def test_a_script_ends_and_is_cut(codec: ChatCodec) -> None:
    policy = ScriptedPolicy(codec, ["long text"])
    completion = await policy.sample((1,), max_tokens=2, temperature=1, top_p=1, seed=None)
    assert completion.stop_reason == "length"
    assert len(completion.token_ids) == len(completion.logprobs) == 2
    with pytest.raises(ProviderError):
        await policy.sample((1,), max_tokens=2, temperature=1, top_p=1, seed=None)
