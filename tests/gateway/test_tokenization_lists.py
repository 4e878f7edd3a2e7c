"""Lists of prompts: each as it would be alone, and however many there are, the event loop is not held."""

import asyncio
from pathlib import Path

import pytest

from gateway.errors import ApiError
from gateway.generation import Prompt
from gateway.prompts.tokenization import ModelTokenizer
from tests.gateway.weights import store_make

CONTEXT = 8192
SHORT = "The quick brown fox. " * 150  # alone it is tokenised where it is


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder: Path = tmp_path_factory.mktemp("weights")
    return ModelTokenizer(folder / store_make(folder))


async def test_each_is_tokenised_as_it_would_be_alone(tokenizer: ModelTokenizer) -> None:
    prompts = [Prompt(text=SHORT), Prompt(ids=(1, 2)), Prompt(text="hello"), Prompt(text=SHORT * 2)]
    alone = [await tokenizer.encode(prompt, CONTEXT) for prompt in prompts]
    assert await tokenizer.encode_all(prompts, CONTEXT) == alone
    assert await tokenizer.encode_all(prompts[1:3], CONTEXT) == alone[1:3]


async def test_many_short_ones_do_not_hold_the_event_loop(tokenizer: ModelTokenizer) -> None:
    waiting = asyncio.create_task(tokenizer.encode_all([Prompt(text=SHORT)] * 64, CONTEXT))
    turns = 0
    while not waiting.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(waiting.result()) == 64
    assert turns > 10


async def test_one_that_is_too_long_refuses_all(tokenizer: ModelTokenizer) -> None:
    with pytest.raises(ApiError, match="context"):
        await tokenizer.encode_all([Prompt(text="hello"), Prompt(text=SHORT)], 20, param="prompt")
