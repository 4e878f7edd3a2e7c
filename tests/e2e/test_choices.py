"""Several choices and prompts, log probabilities, echo: the official client, the real model, the ledger."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import openai
import pytest

from tests.e2e.conftest import RunningStack
from tests.e2e.observe import usage_row

pytestmark = pytest.mark.e2e

PROMPTS = ["The capital of France is", "One, two, three,"]


@pytest.fixture
def client(stack: RunningStack) -> Iterator[openai.OpenAI]:
    demo = stack.demo
    with openai.OpenAI(base_url=demo["base_url"], api_key=demo["api_key"], max_retries=0) as client:
        yield client


async def test_choices_of_several_prompts(stack: RunningStack, client: openai.OpenAI) -> None:
    """Greedy ones are equal, and equal to one computed alone; each prompt has its own row in the ledger."""
    asked: dict[str, Any] = {"model": stack.demo["model"], "max_tokens": 8, "logprobs": 2, "seed": 7}
    several = client.completions.create(**asked, prompt=PROMPTS, n=2, temperature=0)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    for number, prompt in enumerate(PROMPTS):
        alone = client.completions.create(**asked, prompt=prompt, temperature=0)
        pair = several.choices[2 * number : 2 * number + 2]
        assert [choice.text for choice in pair] == [alone.choices[0].text] * 2
        for choice in pair:
            assert choice.logprobs is not None
            assert "".join(choice.logprobs.tokens or []) == choice.text
            tops = choice.logprobs.top_logprobs or []
            values = choice.logprobs.token_logprobs or []
            assert all(value == max(top.values()) for top, value in zip(tops, values, strict=True))
    assert several._request_id is not None
    assert several.usage is not None
    first = UUID(several._request_id).int
    rows = [await usage_row(stack.operator_url, str(UUID(int=first + number))) for number in range(2)]
    assert sum(row["prompt_tokens"] for row in rows) == several.usage.prompt_tokens
    assert sum(row["output_tokens"] for row in rows) == several.usage.completion_tokens
    assert all(row["cost_micro_usd"] == row["charged"] > 0 for row in rows)
    told = client.get(f"/usage/{several._request_id}", cast_to=object)
    assert isinstance(told, dict)
    assert told["cost_micro_usd"] == sum(row["cost_micro_usd"] for row in rows)
    assert told["completion_tokens"] == several.usage.completion_tokens


def test_sampled_choices_differ_and_repeat_with_their_seed(
    stack: RunningStack, client: openai.OpenAI
) -> None:
    def sampled() -> list[str]:
        answer = client.completions.create(
            model=stack.demo["model"], prompt=PROMPTS[0], n=3, max_tokens=12, temperature=1.0, seed=5
        )
        return [choice.text for choice in answer.choices]

    texts = sampled()
    assert len(set(texts)) > 1
    assert sampled() == texts


def test_an_echoed_prompt_has_the_probabilities_that_it_gets_as_an_answer(
    stack: RunningStack, client: openai.OpenAI
) -> None:
    asked: dict[str, Any] = {"model": stack.demo["model"], "temperature": 0, "logprobs": 0}
    answer = client.completions.create(**asked, prompt=PROMPTS[0], max_tokens=2)
    text = PROMPTS[0] + answer.choices[0].text
    echoed = client.completions.create(**asked, prompt=text, max_tokens=0, echo=True)
    assert echoed.choices[0].text == text
    generated, read = answer.choices[0].logprobs, echoed.choices[0].logprobs
    assert generated is not None
    assert read is not None
    assert (read.token_logprobs or [])[0] is None
    count = len(generated.tokens or [])
    assert (read.tokens or [])[-count:] == generated.tokens
    assert (read.token_logprobs or [])[-count:] == pytest.approx(generated.token_logprobs, abs=0.05)
    assert (read.text_offset or [])[-count:] == [
        len(PROMPTS[0]) + offset for offset in generated.text_offset or []
    ]
