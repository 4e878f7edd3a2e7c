"""The client for code that waits: the official one inside, and around it what a broken connection needs."""

from collections.abc import Iterable
from typing import Any, Self, cast

import httpx2
import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam

from sluice_client.answer import CHAT, COMPLETIONS
from sluice_client.call import usage_path
from sluice_client.generations import answer_make, stream_call, whole_parameters
from sluice_client.policy import ResumePolicy
from sluice_client.settings import api_key_choose, base_url_choose
from sluice_client.stream import Stream

CONNECT_S = 5.0


class Sluice:
    """`openai` is the official client, for all that has no method here.

    `timeout_s` is for answers in one piece; streams are bounded by `resume`. `max_retries` is for requests
    that fail before their response begins; a generation is always repeated with its idempotency key.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        resume: ResumePolicy | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 2,
        http_client: httpx2.Client | None = None,
    ) -> None:
        self.openai = openai.OpenAI(
            base_url=base_url_choose(base_url),
            api_key=api_key_choose(api_key),
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S),
            max_retries=max_retries,
            http_client=http_client,
        )
        # What it took from OPENAI_ variables is not for this server.
        self.openai.admin_api_key = self.openai.organization = self.openai.project = None
        policy = resume or ResumePolicy()
        self.chat = Chat(self.openai, policy)
        self.completions = Completions(self.openai, policy)
        self.models = self.openai.models

    def usage(self, request_id: str) -> dict[str, Any]:
        """What a finished request used, as the ledger has it. Raises openai.NotFoundError."""
        found = self.openai.get(usage_path(request_id), cast_to=object)
        return cast(dict[str, Any], found)

    def close(self) -> None:
        self.openai.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Chat:
    def __init__(self, client: openai.OpenAI, policy: ResumePolicy) -> None:
        self._client = client
        self._policy = policy

    def create(
        self,
        *,
        model: str,
        messages: Iterable[ChatCompletionMessageParam],
        idempotency_key: str | None = None,
        **parameters: Any,
    ) -> ChatCompletion:
        """`openai.chat.completions.create` without `stream`, with an idempotency key."""
        arguments = whole_parameters(parameters, idempotency_key)
        return cast(
            ChatCompletion,
            self._client.chat.completions.create(model=model, messages=messages, **arguments),
        )

    def stream(
        self,
        *,
        model: str,
        messages: Iterable[ChatCompletionMessageParam],
        idempotency_key: str | None = None,
        **parameters: Any,
    ) -> Stream[ChatCompletionChunk]:
        """Yields chunks, and Restarted where the answer begins again."""
        parameters |= {"model": model, "messages": messages}
        call = stream_call(CHAT, parameters, policy=self._policy, connect_s=CONNECT_S)
        return Stream(self._client, call, answer_make(idempotency_key))


class Completions:
    def __init__(self, client: openai.OpenAI, policy: ResumePolicy) -> None:
        self._client = client
        self._policy = policy

    def create(
        self,
        *,
        model: str,
        prompt: str | list[str] | list[int] | list[list[int]],
        idempotency_key: str | None = None,
        **parameters: Any,
    ) -> Completion:
        """`openai.completions.create` without `stream`, with an idempotency key."""
        arguments = whole_parameters(parameters, idempotency_key)
        return cast(Completion, self._client.completions.create(model=model, prompt=prompt, **arguments))

    def stream(
        self,
        *,
        model: str,
        prompt: str | list[str] | list[int] | list[list[int]],
        idempotency_key: str | None = None,
        **parameters: Any,
    ) -> Stream[Completion]:
        """Yields chunks, and Restarted where the answer begins again."""
        parameters |= {"model": model, "prompt": prompt}
        call = stream_call(COMPLETIONS, parameters, policy=self._policy, connect_s=CONNECT_S)
        return Stream(self._client, call, answer_make(idempotency_key))
