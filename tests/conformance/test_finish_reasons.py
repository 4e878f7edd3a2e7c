"""Why an answer ended, in every dialect and client: the model's own end, a stop string, a length."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.conformance.clients import Clients, clients_open
from tests.conformance.node import NodeClients
from tests.conformance.stack import Stack
from tests.gateway.harness import MODEL
from tests.gateway.weights import SPECIAL, tokenizer_make

pytestmark = pytest.mark.asyncio(loop_scope="package")

END, STOP, LENGTH = "end", "stop", "length"
CONTENT = "say stop now"
# A chat, whose first token is a special one; and a completion.
SAID = {END: "user\nsay stop now", STOP: "user\nsay ", LENGTH: "user\nsay "}
REPEATED = {END: CONTENT, STOP: "say ", LENGTH: "say stop n"}
TOKENS = 10

MESSAGES: Any = [{"role": "user", "content": CONTENT}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
# Ids, because only they can hold the model's own end token; text that spells it stays text.
IDS = [*tokenizer_make().encode(CONTENT).ids, SPECIAL.index("<|im_end|>")]


@pytest_asyncio.fixture(loop_scope="package")
async def clients(stack: Stack, node: NodeClients) -> AsyncIterator[Clients]:
    async with clients_open(stack.url, stack.key, node) as opened:
        yield opened


def options(kind: str, *, stop: str = "stop", length: str = "max_tokens") -> dict[str, Any]:
    by_kind: dict[str, dict[str, Any]] = {END: {}, STOP: {stop: ["stop"]}, LENGTH: {length: TOKENS}}
    return by_kind[kind]


async def chat(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = options(kind, length="max_completion_tokens")
    (choice,) = (await clients.openai.chat.completions.create(**CHAT, **asked)).choices
    return choice.message.content or "", choice.finish_reason


async def chat_stream(clients: Clients, kind: str) -> tuple[str, Any]:
    stream = await clients.openai.chat.completions.create(**CHAT, **options(kind), stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    assert {choice.finish_reason for choice in choices[:-1]} == {None}
    return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason


async def completion(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = {"max_tokens": 100, **options(kind)}
    (choice,) = (await clients.openai.completions.create(model=MODEL, prompt=IDS, **asked)).choices
    return choice.text, choice.finish_reason


async def completion_stream(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = {"max_tokens": 100, **options(kind)}
    stream = await clients.openai.completions.create(model=MODEL, prompt=IDS, **asked, stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    return "".join(choice.text for choice in choices), choices[-1].finish_reason


async def responses(clients: Clients, kind: str) -> tuple[str, Any]:
    """It has no stop strings."""
    answer = await clients.openai.responses.create(
        model=MODEL, input=CONTENT, **options(kind, length="max_output_tokens")
    )
    details = answer.incomplete_details
    return answer.output_text, (answer.status, details.reason if details else None)


async def responses_stream(clients: Clients, kind: str) -> tuple[str, Any]:
    stream = await clients.openai.responses.create(
        model=MODEL, input=CONTENT, **options(kind, length="max_output_tokens"), stream=True
    )
    events: list[Any] = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    assert last.output_text == text
    return text, (last.status, last.incomplete_details.reason if last.incomplete_details else None)


async def messages(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = {"max_tokens": 100, **options(kind, stop="stop_sequences")}
    message = await clients.anthropic.messages.create(**CHAT, **asked)
    return message.content[0].model_dump()["text"], (message.stop_reason, message.stop_sequence)


async def messages_stream(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = {"max_tokens": 100, **options(kind, stop="stop_sequences")}
    async with clients.anthropic.messages.stream(**CHAT, **asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    return text, (message.stop_reason, message.stop_sequence)


async def text_generation(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = {"max_new_tokens": 100, **options(kind, length="max_new_tokens")}
    answer: Any = await clients.generating.text_generation(CONTENT, **asked, details=True)
    return answer.generated_text, answer.details.finish_reason


async def text_generation_stream(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = {"max_new_tokens": 100, **options(kind, length="max_new_tokens")}
    stream: Any = await clients.generating.text_generation(CONTENT, **asked, details=True, stream=True)
    events = [event async for event in stream]
    assert "".join(e.token.text for e in events if not e.token.special) == events[-1].generated_text
    return events[-1].generated_text, events[-1].details.finish_reason


async def javascript(clients: Clients, kind: str) -> tuple[str, Any]:
    events = await clients.node.call("openai", "chatStream", **clients.access, body={**CHAT, **options(kind)})
    choices = [event["choices"][0] for event in events]
    return "".join(c["delta"].get("content") or "" for c in choices), choices[-1]["finish_reason"]


async def ai(clients: Clients, kind: str) -> tuple[str, Any]:
    asked = options(kind, stop="stopSequences", length="maxOutputTokens")
    said = await clients.node.call(
        "ai", "stream", **clients.access, model=MODEL, ask={"messages": MESSAGES, **asked}
    )
    return said["text"], said["finishReason"]


OPENAI = {END: "stop", STOP: "stop", LENGTH: "length"}
RESPONSES = {END: ("completed", None), LENGTH: ("incomplete", "max_output_tokens")}
ANTHROPIC = {END: ("end_turn", None), STOP: ("stop_sequence", "stop"), LENGTH: ("max_tokens", None)}
TGI = {STOP: "stop_sequence", LENGTH: "length"}

Ask = Callable[[Clients, str], Awaitable[tuple[str, Any]]]
CASES: list[tuple[Ask, dict[str, str], dict[str, Any]]] = [
    (chat, SAID, OPENAI),
    (chat_stream, SAID, OPENAI),
    (completion, REPEATED, OPENAI),
    (completion_stream, REPEATED, OPENAI),
    (responses, SAID, RESPONSES),
    (responses_stream, SAID, RESPONSES),
    (messages, SAID, ANTHROPIC),
    (messages_stream, SAID, ANTHROPIC),
    (text_generation, REPEATED, TGI),
    (text_generation_stream, REPEATED, TGI),
    (javascript, SAID, OPENAI),
    (ai, SAID, OPENAI),
]


@pytest.mark.parametrize(
    ("ask", "text", "reason", "kind"),
    [
        pytest.param(ask, texts[kind], reason, kind, id=f"{ask.__name__}-{kind}")
        for ask, texts, reasons in CASES
        for kind, reason in reasons.items()
    ],
)
async def test_reason(clients: Clients, ask: Ask, text: str, reason: Any, kind: str) -> None:
    assert await ask(clients, kind) == (text, reason)
