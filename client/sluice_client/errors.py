"""What can go wrong beyond the official client's own exceptions; handlers of those catch these too."""

import httpx2
import openai


class ConfigurationError(openai.OpenAIError):
    """A base URL that is none, or no API key."""


class NoApiKey(ConfigurationError):
    """None was given, or one that no server can have made."""


class StreamError(openai.APIError):
    """The server ended the stream by an error event, or sent what is no event.

    `code`, `type`, `param` and `message` are the server's; its docs list the codes.
    """

    def __init__(self, message: str, request: httpx2.Request, *, body: object, request_id: str) -> None:
        super().__init__(message, request, body=body)
        self.request_id = request_id


class StreamLost(openai.APIConnectionError):
    """The connection broke and the stream could not be continued within the bounds of the ResumePolicy.

    Once the server is back, the same call with this `idempotency_key` gets the answer, for one bill.
    """

    def __init__(
        self,
        message: str,
        request: httpx2.Request,
        *,
        request_id: str,
        last_event_id: str,
        idempotency_key: str,
    ) -> None:
        super().__init__(message=message, request=request)
        self.request_id = request_id
        self.last_event_id = last_event_id
        self.idempotency_key = idempotency_key
