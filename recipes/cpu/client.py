"""SkyRL's client of the inference server, patient with one that is being started again.

Calls of the trainer (pause, resume, reload) are repeated while the server refuses or drops connections; all
of them may be repeated. Data-plane calls are not touched: rollouts have their own client.
"""

import dataclasses
from typing import Any

import aiohttp
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from recipes.cpu.supervisor import RESTART_WAIT_S


class PatientClient(RemoteInferenceClient):
    """Waits for a restarted server instead of failing the run."""

    @classmethod
    def of(cls, client: RemoteInferenceClient) -> "PatientClient":
        """The same client, patient."""
        return cls(**{field.name: getattr(client, field.name) for field in dataclasses.fields(client)})

    async def _call_server(self, *args: Any, **kwargs: Any) -> Any:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)),
            wait=wait_fixed(0.5),
            stop=stop_after_delay(RESTART_WAIT_S),
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                return await super()._call_server(*args, **kwargs)
        raise AssertionError("tenacity always returns or raises")
