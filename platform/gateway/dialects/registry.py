"""Every dialect, by the name that logs of tokens keep, and the endpoints that speak them."""

from gateway.dialects.anthropic.messages import MESSAGES
from gateway.dialects.base import Dialect
from gateway.dialects.openai.chat import CHAT
from gateway.dialects.openai.completions import COMPLETIONS
from gateway.dialects.responses.dialect import RESPONSES
from gateway.dialects.tgi.generate import COMPAT, GENERATE, GENERATE_STREAM

# Requests for a generation, all of them POST.
ENDPOINTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/": COMPAT,
    "/generate": GENERATE,
    "/generate_stream": GENERATE_STREAM,
}
DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in ENDPOINTS.values()}
