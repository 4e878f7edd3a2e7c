"""What models there are: GET /v1/models for a key, GET /info and /health as TGI's clients read them."""

from importlib.metadata import version
from typing import Any

import msgspec

from gateway.dialects.tgi.info import UNHEALTHY, info_body
from gateway.errors import ApiError
from gateway.http.exchange import Exchange
from gateway.prompts.tokenization import TOKENISING_THREADS
from gateway.runtime import Gateway
from gateway.serving.admission import key_authenticate
from modelsvc.contracts import ModelRoute


async def models_list(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError."""
    grant = key_authenticate(gateway, exchange.headers)
    routes = sorted(gateway.snapshot().routes.values(), key=lambda route: route.slug)
    data = [_object(gateway, route) for route in routes if grant.models is None or route.slug in grant.models]
    await exchange.respond(200, msgspec.json.encode({"object": "list", "data": data}))


async def model_get(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError; a model this key may not use looks like none."""
    grant = key_authenticate(gateway, exchange.headers)
    slug = exchange.path.removeprefix("/v1/models/")
    route = gateway.snapshot().routes.get(slug)
    if route is None or (grant.models is not None and slug not in grant.models):
        raise ApiError("model_not_found", f"the model {slug!r} does not exist", param="model")
    await exchange.respond(200, msgspec.json.encode(_object(gateway, route)))


def _object(gateway: Gateway, route: ModelRoute) -> dict[str, Any]:
    return {
        "id": route.slug,
        "object": "model",
        "created": int(route.created_at.timestamp()),
        "owned_by": route.owned_by,
        "max_model_len": gateway.max_context_tokens(route),
    }


async def tgi_info(gateway: Gateway, exchange: Exchange) -> None:
    """GET /info, as TGI's clients read it: about the default or the only model. Needs no key, as there."""
    route = gateway.default_route()
    body = info_body(
        model=route.slug,
        digest=route.digest,
        max_context_tokens=gateway.max_context_tokens(route),
        max_concurrent_requests=gateway.limits.max_open_requests,
        validation_workers=TOKENISING_THREADS,
        version=version("sluice"),
    )
    await exchange.respond(200, body)


async def tgi_health(gateway: Gateway, exchange: Exchange) -> None:
    """GET /health: an empty 200 when a request sent now would be served."""
    if gateway.missing():
        await exchange.respond(503, UNHEALTHY)
    else:
        await exchange.respond(200, b"", ())
