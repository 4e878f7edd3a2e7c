"""TGI's three ways to generate: `POST /generate`, `POST /generate_stream`, and `POST /`, where the body says
which of the two it is and a whole answer is a list."""

from gateway.answer_parts import Head
from gateway.dialects.base import Ask, Dialect, Options, Renderer, TokenText
from gateway.dialects.openai.decoding import decode
from gateway.dialects.tgi.errors import error_body, status_and_type
from gateway.dialects.tgi.parameters import ABSENT, generation_make, is_sampled
from gateway.dialects.tgi.renderer import GenerateOptions, GenerateRenderer
from gateway.dialects.tgi.schema import COMPAT_BODY, GENERATE_BODY, CompatBody, GenerateBody
from gateway.errors import ApiError


class TgiDialect(Dialect):
    """Its requests name no model: they are for the default one."""

    options_type = GenerateOptions

    def renderer(self, options: Options, head: Head, tokens: TokenText) -> Renderer:
        assert isinstance(options, GenerateOptions)
        return GenerateRenderer(options, head, tokens)

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        status, _ = status_and_type(error)
        return status, error_body(error)


class Generate(TgiDialect):
    name = "tgi.generate"

    def parse(self, body: bytes) -> Ask:
        return _ask(decode(body, GENERATE_BODY), stream=False, listed=False)


class GenerateStream(TgiDialect):
    name = "tgi.generate_stream"

    def parse(self, body: bytes) -> Ask:
        return _ask(decode(body, GENERATE_BODY), stream=True, listed=False)


class Compat(TgiDialect):
    name = "tgi.compat"

    def parse(self, body: bytes) -> Ask:
        asked = decode(body, COMPAT_BODY)
        return _ask(asked, stream=bool(asked.stream), listed=True)


def _ask(body: GenerateBody | CompatBody, *, stream: bool, listed: bool) -> Ask:
    """Raises ApiError."""
    parameters = ABSENT if body.parameters is None else body.parameters
    options = GenerateOptions(
        details=bool(parameters.details or parameters.decoder_input_details),
        prefill=bool(parameters.decoder_input_details),
        listed=listed,
        sampled=is_sampled(parameters),
        characters=len(body.inputs),
        top_n_tokens=parameters.top_n_tokens or 0,
        max_tokens=parameters.max_new_tokens,
        before=body.inputs if parameters.return_full_text else "",
    )
    return Ask(generation_make(body.inputs, parameters, stream=stream), options)


GENERATE = Generate()
GENERATE_STREAM = GenerateStream()
COMPAT = Compat()
