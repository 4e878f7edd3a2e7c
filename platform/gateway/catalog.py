"""GET /v1/models: the models this key may use."""

from typing import Any

import msgspec

from gateway.errors import ApiError
from gateway.http import Exchange
from gateway.runtime import Gateway
from modelsvc.contracts import ModelRoute


async def models_list(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError."""
    grant = gateway.authenticate(exchange)
    routes = sorted(gateway.snapshot().routes.values(), key=lambda route: route.slug)
    data = [_object(gateway, route) for route in routes if grant.models is None or route.slug in grant.models]
    await exchange.respond(200, msgspec.json.encode({"object": "list", "data": data}))


async def model_get(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError; a model this key may not use looks like none."""
    grant = gateway.authenticate(exchange)
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
