"""The stream of one answer, for code that waits."""

import logging
import ssl
import time
from collections.abc import Iterator
from typing import Generic, Self

import anyio
import httpx2
import openai

from sluice_client.answer import Answer, ChunkT, Restarted
from sluice_client.call import RAW_EVENTS, StreamCall, cancel_options, stream_path
from sluice_client.progress import Broken, Progress

_log = logging.getLogger(__name__)
# What the official client takes for a broken connection, and what we do.
BROKEN = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream, Broken)


class Stream(Generic[ChunkT]):
    """Iterate over it once: the request is sent by the first step, or on entering `with`.

    Leaving the `with` block early, or the loop where there is none, by whatever exception, stops the
    generation at the server.
    Raises the official client's exceptions, StreamError when the server ends the stream by an error, and
    StreamLost when a broken connection cannot be mended.
    """

    def __init__(self, client: openai.OpenAI, call: StreamCall[ChunkT], answer: Answer) -> None:
        self.answer = answer
        self._client = client
        self._call = call
        self._progress = Progress(call.endpoint, call.policy, answer)
        self._response: httpx2.Response | None = None
        self._closed = False
        self._entered = False  # then only leaving the block closes
        self._iterated = False

    def __enter__(self) -> Self:
        self._entered = True
        self._open()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ChunkT | Restarted]:
        # A generator that only the loop holds: leaving the loop ends it at once, and with it the answer.
        if self._iterated and not (self._closed or self._progress.ended):
            raise RuntimeError("a stream can be iterated once")
        self._iterated = True
        try:
            self._open()
            while not (self._progress.ended or self._closed):
                cause: BaseException | None = None
                try:
                    yield from self._received()
                except BROKEN as error:
                    cause = error
                if self._progress.ended or self._closed:
                    return
                restarted = self._reconnect(cause)
                if restarted is not None:
                    yield restarted
        finally:
            if not self._entered:
                self.close()

    def read(self) -> str:
        """Read on to the end; the text of the first choice."""
        for _ in self:
            pass
        return self.answer.text

    def close(self) -> None:
        """Close the connection, and stop the generation if it has not ended. For the thread that reads."""
        if self._closed:
            return
        self._closed = True
        if self._response is not None:
            self._response.close()
        if self._progress.cancellable:
            self._cancel()

    def _open(self) -> None:
        if self._response is None and not self._closed:
            self._connect(self._post(self._call.first(self.answer)))

    def _received(self) -> Iterator[ChunkT]:
        assert self._response is not None
        for data in self._response.iter_bytes():
            for chunk in self._progress.chunks(data):
                yield chunk
                if self._closed:
                    return
            if self._progress.ended:
                return

    def _reconnect(self, cause: BaseException | None) -> Restarted | None:
        """Until it has succeeded; what is worth another attempt, and when, is the progress's to say."""
        assert self._response is not None
        self._response.close()
        while True:
            time.sleep(self._progress.wait_s(cause))
            try:
                if self._progress.from_start:
                    response = self._post(self._call.again(self.answer))
                    seen = self._progress.begin_again()
                    self._connect(response)
                    return Restarted(self.answer.request_id, self.answer.restarts) if seen else None
                self._connect(self._get())
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

    def _post(self, options: openai.RequestOptions) -> httpx2.Response:
        response: httpx2.Response | openai.Stream[object] = self._client.post(
            self._call.endpoint.path,
            cast_to=httpx2.Response,
            body={**self._call.body, "stream": True},
            options=options,
            stream=True,
            stream_cls=RAW_EVENTS,
        )
        assert isinstance(response, httpx2.Response)
        return response

    def _get(self) -> httpx2.Response:
        response: httpx2.Response | openai.Stream[object] = self._client.get(
            stream_path(self._progress.stream),
            cast_to=httpx2.Response,
            options=self._call.resume(self._progress.last_event_id),
            stream=True,
            stream_cls=RAW_EVENTS,
        )
        assert isinstance(response, httpx2.Response)
        return response

    def _cancel(self) -> None:
        try:
            self._client.delete(
                stream_path(self._progress.stream), cast_to=httpx2.Response, options=cancel_options()
            )
        except openai.NotFoundError:
            _log.debug("%s had already ended", self.answer.request_id)
        except openai.APIError as error:
            _log.warning("the server was not told to cancel %s: %s", self.answer.request_id, error)
