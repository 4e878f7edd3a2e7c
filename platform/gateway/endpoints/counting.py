"""POST /v1/messages/count_tokens: how many tokens a prompt has. Nothing is generated, and nothing billed."""

from gateway.access.auth import SCOPE_COMPLETIONS, scope_require
from gateway.dialects.anthropic.count_tokens import count_tokens_parse, count_tokens_reply
from gateway.http.exchange import Exchange
from gateway.runtime import Gateway
from gateway.serving.admission import key_authenticate, slot
from gateway.serving.submission import tokenizer_get


async def count_tokens(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError."""
    grant = key_authenticate(gateway, exchange.headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    with slot(gateway, grant):
        body = await gateway.bodies.read(exchange)
        try:
            gateway.key_require(grant)
            generation = count_tokens_parse(body)
            route = gateway.route(grant, generation.model)
            tokenizer = await tokenizer_get(gateway, route)
            (prompt,) = generation.prompts
            context = gateway.max_context_tokens(route)
            ids = await tokenizer.encode(prompt, context, param=generation.names.prompt)
        finally:
            gateway.bodies.release(len(body))
        await exchange.respond(200, count_tokens_reply(len(ids)))
