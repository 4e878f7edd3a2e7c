"""Every asynchronous client at once, each with kept connections and without retries."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anthropic import AsyncAnthropic
from huggingface_hub import AsyncInferenceClient
from openai import AsyncOpenAI

from tests.conformance.node import NodeClients

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Clients:
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic
    chatting: AsyncInferenceClient
    generating: AsyncInferenceClient
    node: NodeClients
    access: dict[str, Any]  # of the JavaScript ones


@asynccontextmanager
async def clients_open(url: str, key: str, node: NodeClients) -> AsyncIterator[Clients]:
    base_url = f"{url}/v1"
    async with (
        AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=TIMEOUT_S) as openai,
        AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT_S) as anthropic,
        AsyncInferenceClient(base_url=base_url, api_key=key, timeout=TIMEOUT_S) as chatting,
        AsyncInferenceClient(model=url, token=key, timeout=TIMEOUT_S) as generating,
    ):
        access = {"baseURL": base_url, "apiKey": key}
        yield Clients(openai, anthropic, chatting, generating, node, access)
