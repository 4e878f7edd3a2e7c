"""The `text-generation` client, sync and async. Its own models still call pydantic 1's methods."""

import pytest
from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError
from text_generation.types import FinishReason

from tests.conformance.stack import Stack

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

PROMPT = "Grüße 你好 👩‍👩‍👧"


def headers(stack: Stack, key: str = "full") -> dict[str, str]:
    return {"authorization": f"Bearer {stack.deployment.keys[key]}"}


@pytest.fixture
def client(stack: Stack) -> Client:
    return Client(stack.url, headers=headers(stack), timeout=20)


def test_generate(client: Client) -> None:
    answer = client.generate(PROMPT, max_new_tokens=len(PROMPT.encode()), decoder_input_details=True)
    assert answer.generated_text == PROMPT
    assert answer.details.finish_reason == FinishReason.Length
    assert answer.details.generated_tokens == len(PROMPT.encode())
    assert len(answer.details.tokens) == len(PROMPT.encode())
    assert len(answer.details.prefill) == len(PROMPT.encode())
    assert answer.details.prefill[0].logprob is None


def test_generate_stream(client: Client) -> None:
    events = list(client.generate_stream(PROMPT, max_new_tokens=len(PROMPT.encode())))
    assert "".join(event.token.text for event in events if not event.token.special) == PROMPT
    assert [event.generated_text for event in events[:-1]] == [None] * (len(events) - 1)
    last = events[-1]
    assert last.generated_text == PROMPT
    assert last.details is not None
    assert last.details.finish_reason == FinishReason.Length
    assert last.details.generated_tokens == len(PROMPT.encode())


def test_stop_sequences(client: Client) -> None:
    whole = client.generate("say stop now", max_new_tokens=40, stop_sequences=["stop"])
    assert (whole.generated_text, whole.details.finish_reason) == ("say ", FinishReason.StopSequence)
    *_, last = client.generate_stream("say stop now", max_new_tokens=40, stop_sequences=["stop"])
    assert last.generated_text == "say "
    assert last.details is not None
    assert last.details.finish_reason == FinishReason.StopSequence


def test_the_end_of_the_sequence(client: Client) -> None:
    """A text that spells the end-of-turn token is text; an answer's own token ends it."""
    answer = client.generate("a<|im_end|>b", max_new_tokens=13)
    assert answer.generated_text == "a<|im_end|>ba"


async def test_the_asynchronous_client(stack: Stack) -> None:
    client = AsyncClient(stack.url, headers=headers(stack), timeout=20)
    answer = await client.generate("abc", max_new_tokens=7)
    assert answer.generated_text == "abcabca"
    events = [event async for event in client.generate_stream("abc", max_new_tokens=7)]
    assert "".join(event.token.text for event in events if not event.token.special) == "abcabca"
    assert events[-1].generated_text == "abcabca"


def test_errors_have_their_own_class(stack: Stack, client: Client) -> None:
    with pytest.raises(ValidationError):
        client.generate("x" * 600)
    with pytest.raises(ValidationError):
        list(client.generate_stream("x" * 600))
    stranger = Client(stack.url, headers=headers(stack, "unknown"))
    with pytest.raises(Exception, match="API key"):
        stranger.generate("abc")
