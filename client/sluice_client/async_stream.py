"""The stream of one answer, for code that awaits: under asyncio or trio."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Generic, Self

import anyio
import httpx2
import openai

from sluice_client.answer import Answer, ChunkT, Restarted
from sluice_client.call import CANCEL_TIMEOUT_S, RAW_ASYNC_EVENTS, StreamCall, cancel_options, stream_path
from sluice_client.progress import Progress
from sluice_client.stream import BROKEN

_log = logging.getLogger(__name__)


class AsyncStream(Generic[ChunkT]):
    """As Stream. Cancelling the task that reads stops the generation too.

    Prefer `async with`: a loop that is left without it ends when the event loop gets to it.
    """

    def __init__(self, client: openai.AsyncOpenAI, call: StreamCall[ChunkT], answer: Answer) -> None:
        self.answer = answer
        self._client = client
        self._call = call
        self._progress = Progress(call.endpoint, call.policy, answer)
        self._response: httpx2.Response | None = None
        self._closed = False
        self._entered = False  # then only leaving the block closes
        self._iterated = False

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._open()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[ChunkT | Restarted]:
        if self._iterated and not (self._closed or self._progress.ended):
            raise RuntimeError("a stream can be iterated once")
        self._iterated = True
        try:
            await self._open()
            while not (self._progress.ended or self._closed):
                cause: BaseException | None = None
                try:
                    async with aclosing(self._received()) as chunks:
                        async for chunk in chunks:
                            yield chunk
                except BROKEN as error:
                    cause = error
                if self._progress.ended or self._closed:
                    return
                restarted = await self._reconnect(cause)
                if restarted is not None:
                    yield restarted
        finally:
            if not self._entered:
                await self.close()

    async def read(self) -> str:
        """Read on to the end; the text of the first choice."""
        async for _ in self:
            pass
        return self.answer.text

    async def close(self) -> None:
        """Close the connection, and stop the generation if it has not ended."""
        if self._closed:
            return
        self._closed = True
        # Shielded: a cancelled task has the most reason to tell the server.
        with anyio.move_on_after(CANCEL_TIMEOUT_S, shield=True):
            if self._response is not None:
                await self._response.aclose()
            if self._progress.cancellable:
                await self._cancel()

    async def _open(self) -> None:
        if self._response is None and not self._closed:
            self._connect(await self._post(self._call.first(self.answer)))

    async def _received(self) -> AsyncGenerator[ChunkT]:
        assert self._response is not None
        async with aclosing(self._response.aiter_bytes()) as pieces:
            async for data in pieces:
                for chunk in self._progress.chunks(data):
                    yield chunk
                    if self._closed:
                        return
                if self._progress.ended:
                    return

    async def _reconnect(self, cause: BaseException | None) -> Restarted | None:
        """Until it has succeeded; what is worth another attempt, and when, is the progress's to say."""
        assert self._response is not None
        await self._response.aclose()
        while True:
            await anyio.sleep(self._progress.wait_s(cause))
            try:
                if self._progress.from_start:
                    response = await self._post(self._call.again(self.answer))
                    seen = self._progress.begin_again()
                    self._connect(response)
                    return Restarted(self.answer.request_id, self.answer.restarts) if seen else None
                self._connect(await self._get())
                self._progress.mended()
                return None
            except openai.APIConnectionError as error:
                cause = error
            except openai.APIStatusError as error:
                self._progress.refused(error)
                cause = error

    def _connect(self, response: httpx2.Response) -> None:
        self._response = response
        self._progress.connected(response)

    async def _post(self, options: openai.RequestOptions) -> httpx2.Response:
        response: httpx2.Response | openai.AsyncStream[object] = await self._client.post(
            self._call.endpoint.path,
            cast_to=httpx2.Response,
            body={**self._call.body, "stream": True},
            options=options,
            stream=True,
            stream_cls=RAW_ASYNC_EVENTS,
        )
        assert isinstance(response, httpx2.Response)
        return response

    async def _get(self) -> httpx2.Response:
        response: httpx2.Response | openai.AsyncStream[object] = await self._client.get(
            stream_path(self._progress.stream),
            cast_to=httpx2.Response,
            options=self._call.resume(self._progress.last_event_id),
            stream=True,
            stream_cls=RAW_ASYNC_EVENTS,
        )
        assert isinstance(response, httpx2.Response)
        return response

    async def _cancel(self) -> None:
        try:
            await self._client.delete(
                stream_path(self._progress.stream), cast_to=httpx2.Response, options=cancel_options()
            )
        except openai.NotFoundError:
            _log.debug("%s had already ended", self.answer.request_id)
        except openai.APIError as error:
            _log.warning("the server was not told to cancel %s: %s", self.answer.request_id, error)
