"""`POST /v1/responses`, as OpenAI's clients speak it. Stateless: no response is kept for another request."""

import msgspec

from gateway.answer_parts import Head
from gateway.dialects.base import Ask, Dialect, Options, Renderer, TokenText
from gateway.dialects.openai.decoding import decode
from gateway.dialects.responses.renderer import ResponsesOptions, ResponsesRenderer
from gateway.dialects.responses.schema import ResponsesBody
from gateway.dialects.responses.translation import ask_translate
from gateway.errors import ApiError

_DECODER = msgspec.json.Decoder(ResponsesBody)


class ResponsesDialect(Dialect):
    name = "openai.responses"
    options_type = ResponsesOptions

    def parse(self, body: bytes) -> Ask:
        return ask_translate(decode(body, _DECODER))

    def renderer(self, options: Options, head: Head, tokens: TokenText) -> Renderer:
        assert isinstance(options, ResponsesOptions)
        return ResponsesRenderer(options, head, tokens)

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        return error.status, error.envelope()


RESPONSES = ResponsesDialect()
